// SPDX-License-Identifier: Apache-2.0
#include "tandem/cli/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "tandem/base/error.h"

namespace tandem::cli {
namespace {

std::string flag_of(const std::string& path) {
  std::string flag = "--" + path;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

}  // namespace

void add_options(CLI::App& app, const OptionList& list, const std::string& group) {
  for (const OptionEntry& entry : list.entries) {
    const std::string flag = flag_of(entry.path), help(entry.ref.help);
    CLI::Option* option = nullptr;
    if (bool* const* on = std::get_if<bool*>(&entry.ref.value)) {
      option = app.add_flag_function(flag, [target = *on](int64_t) { *target = true; }, help);
    } else {
      option = app.add_option_function<std::string>(flag, [entry, flag](const std::string& text) { set_option(entry, text, flag); }, help);
      option->default_str(option_text(entry.ref.value));
    }
    option->group(group);
  }
}

void add_compute(CLI::App& app, std::string& device, std::string& dtype, int64_t& threads) {
  const std::string group = "Computing";
  app.add_option("--device", device, "Where to compute")->check(CLI::IsMember({"cpu", "cuda"}))->capture_default_str()->group(group);
  app.add_option("--dtype", dtype, "Compute dtype")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--threads", threads, "Compute threads; 0 takes every core")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(group);
}

void add_inference(CLI::App& app, runtime::InferenceOptions& options) {
  app.add_option("--model", options.model, "Hugging Face directory of the model")->required()->type_name("DIR");
  add_compute(app, options.device, options.dtype, options.threads);
  app.add_option("--seed", options.seed, "Seed of sampling")->check(CLI::NonNegativeNumber)->capture_default_str()->group("Computing");
  app.add_flag("--parity", options.parity, "The very bits that training computes; slower")->group("Computing");
  add_described(app, options.engine, "Engine");
}

CLI::Option* add_repeated(CLI::App& app, const std::string& name, std::vector<std::string>& values, const std::string& help) {
  return app.add_option(name, values, help)->allow_extra_args(false)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

InputFile::InputFile(const std::string& path) : path_(path) {
  if (path_.empty()) return;
  errno = 0;
  file_.open(path_);
  if (!file_ || std::filesystem::is_directory(path_))
    throw UserError(path_, std::string("cannot be read: ") + std::strerror(errno ? errno : EISDIR), "expected a file of JSON lines");
}

}  // namespace tandem::cli
