// SPDX-License-Identifier: Apache-2.0
#pragma once
// A command whose subcommands are benchmarks: each has the flags that its options describe, and prints its object, to --out as well.

#include <CLI/App.hpp>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "options.h"
#include "tandem/cli/arguments.h"
#include "tandem/cli/command/command.h"

namespace tandem::cli {

class Benchmarks : public Command {
 public:
  void run() final {
    for (const auto& [app, measure] : benches_) {
      if (app->count() == 0) continue;
      const nlohmann::json object = measure();
      if (object.is_null()) return;  // another rank reports
      const std::string text = object.dump(2) + "\n";
      std::cout << text << std::flush;
      write_out(out_, text);
    }
  }

 protected:
  /// Exactly the options that this benchmark reads: those it describes, and those of its kind.
  template <class Options>
  CLI::App* add(CLI::App& app, const char* name, const char* summary, Options& options, nlohmann::json (*measure)(const Options&)) {
    CLI::App* sub = app.add_subcommand(name, summary);
    if constexpr (std::is_base_of_v<bench::WithModel, Options>) {
      sub->add_option("--model", options.model, "Hugging Face directory of the model")->required()->type_name("DIR");
      add_dtype(*sub, options.dtype, options.threads);
    }
    if constexpr (std::is_base_of_v<bench::Computing, Options>) {
      add_device(*sub, options.device);
      add_kernels(*sub, options.kernels);
      sub->add_flag("--parity", options.parity, "In parity mode")->group("Computing");
    }
    add_described(*sub, options, "Workload");
    add_out(*sub, out_, "File for the JSON object as well");
    benches_.emplace_back(sub, [&options, measure] { return measure(options); });
    return sub;
  }

  /// --lengths: a file with a JSON array of positive integers. Errors while parsing: UserError naming the file.
  static void add_lengths(CLI::App& app, std::vector<int64_t>& lengths, const char* help);

 private:
  std::string out_;
  std::vector<std::pair<CLI::App*, std::function<nlohmann::json()>>> benches_;
};

/// All of them: the command `bench`.
std::unique_ptr<Command> benchmarks();

}  // namespace tandem::cli
