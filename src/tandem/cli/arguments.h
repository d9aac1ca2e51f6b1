// SPDX-License-Identifier: Apache-2.0
#pragma once
// Options that commands share, and structs with describe() as command-line options.

#include <CLI/App.hpp>
#include <fstream>
#include <iostream>
#include <string>

#include "tandem/base/options.h"
#include "tandem/serve/inference.h"

namespace tandem::cli {

/// Adds each listed option as `--its-name` with its own help, default and check. Errors while parsing: UserError naming it.
void add_options(CLI::App& app, const OptionList& list, const std::string& group);

/// One such option. `value` must outlive the parse.
CLI::Option* add_checked(CLI::App& app, const std::string& flag, OptionValue value, const std::string& help, OptionCheck check = {});

/// `options` must outlive the parse.
template <class Options>
void add_described(CLI::App& app, Options& options, const std::string& group) {
  OptionList list;
  describe(list, options);
  add_options(app, list, group);
}

/// --model (required), --device, --dtype, --threads, --kernels, --parity.
void add_model(CLI::App& app, serve::InferenceOptions& options);
/// The same with --seed and the engine's options.
void add_inference(CLI::App& app, serve::InferenceOptions& options);
void add_device(CLI::App& app, std::string& device);
/// --dtype, --threads.
void add_dtype(CLI::App& app, std::string& dtype, int64_t& threads);
void add_kernels(CLI::App& app, std::string& kernels);
/// --out. Errors: UserError for a place where no file can be, before anything is done.
void add_out(CLI::App& app, std::string& path, const std::string& help);
/// Nothing where `path` is empty. Errors: UserError.
void write_out(const std::string& path, const std::string& text);
/// An option that may be given several times, one value each.
CLI::Option* add_repeated(CLI::App& app, const std::string& name, std::vector<std::string>& values, const std::string& help);

/// Standard input, or a file. Errors: UserError if the file cannot be read.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  std::istream& stream() { return path_.empty() ? std::cin : file_; }
  /// As errors name it.
  std::string name() const { return path_.empty() ? "stdin" : path_; }

 private:
  std::string path_;
  std::ifstream file_;
};

}  // namespace tandem::cli
