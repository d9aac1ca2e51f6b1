// SPDX-License-Identifier: Apache-2.0
#include "tandem/cli/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <unistd.h>

#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/base/strings.h"
#include "tandem/config/config.h"
#include "tandem/device/process.h"

namespace tandem::cli {
namespace {

std::string flag_of(const std::string& path) {
  std::string flag = "--" + path;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

}  // namespace

CLI::Option* add_checked(CLI::App& app, const std::string& flag, OptionValue value, const std::string& help, OptionCheck check) {
  if (bool** on = std::get_if<bool*>(&value)) {
    // What is on unless told otherwise needs a word to turn it off.
    const std::string flags = **on ? flag + ",!--no-" + flag.substr(2) : flag;
    return app.add_flag_function(flags, [target = *on](int64_t count) { *target = count > 0; }, help)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  const OptionEntry entry{flag.substr(2), OptionRef{{}, value, {}, std::move(check)}};
  const auto set = [entry, flag](const std::string& text) { set_option(entry, text, flag); };
  CLI::Option* option = app.add_option_function<std::string>(flag, set, help);
  const std::string words = joined(config::allowed_words(entry.ref), "|");
  const bool is_text = std::holds_alternative<std::string*>(value), is_list = std::holds_alternative<std::vector<std::string>*>(value);
  option->type_name(!words.empty() ? words : is_list ? "A,B" : is_text ? "TEXT" : "N");
  const std::string shown = option_text(value);
  return shown == "\"\"" || shown == "[]" ? option : option->default_str(shown);
}

void add_options(CLI::App& app, const OptionList& list, const std::string& group) {
  for (const OptionEntry& entry : list.entries)
    add_checked(app, flag_of(entry.path), entry.ref.value, std::string(entry.ref.help), entry.ref.check)->group(group);
}

void add_device(CLI::App& app, std::string& device) {
  add_checked(app, "--device", &device, "Where to compute; auto takes a device if there is one",
              one_of(device::device_names()))
      ->group("Computing");
}

void add_dtype(CLI::App& app, std::string& dtype, int64_t& threads) {
  const std::string group = "Computing";
  add_checked(app, "--dtype", &dtype, "Compute dtype", one_of({"float32", "bfloat16"}))->group(group);
  add_checked(app, "--threads", &threads, "Compute threads; 0 takes every core", between(0, 1024))->group(group);
}

void add_kernels(CLI::App& app, std::string& kernels) {
  add_checked(app, "--kernels", &kernels, "The device's own (cpu, cuda, npu), or libtorch's operators alone (aten); auto takes its own",
              one_of({"auto", "cpu", "cuda", "npu", "aten"}))
      ->group("Computing");
}

void add_out(CLI::App& app, std::string& path, const std::string& help) {
  const auto take = [&path](const std::string& text) {
    namespace fs = std::filesystem;
    std::error_code failed;
    const fs::path folder = fs::path(text).has_parent_path() ? fs::path(text).parent_path() : fs::path(".");
    if (fs::is_directory(text, failed) || !fs::is_directory(folder, failed) || ::access(folder.c_str(), W_OK) != 0)
      throw UserError(text, "cannot be written", "a file in a folder that exists");
    path = text;
  };
  app.add_option_function<std::string>("--out", take, help)->type_name("FILE");
}

void write_out(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  std::ofstream file(path);
  file << text << std::flush;
  if (!file) throw UserError(path, "cannot be written", "a file in a folder that exists");
}

void add_model(CLI::App& app, serve::InferenceOptions& options) {
  app.add_option("--model", options.model, "Hugging Face directory of the model, or OWNER/NAME on a hub")->required()->type_name("DIR");
  add_device(app, options.device);
  add_dtype(app, options.dtype, options.threads);
  add_kernels(app, options.kernels);
  add_checked(app, "--parity", &options.parity, "The very bits that training computes; slower")->group("Computing");
}

void add_inference(CLI::App& app, serve::InferenceOptions& options) {
  add_model(app, options);
  add_checked(app, "--seed", &options.seed, "Seed of sampling", at_least(0))->group("Computing");
  add_described(app, options.engine, "Engine");
}

CLI::Option* add_repeated(CLI::App& app, const std::string& name, std::vector<std::string>& values, const std::string& help) {
  return app.add_option(name, values, help)->allow_extra_args(false)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

InputFile::InputFile(const std::string& path) : path_(path) {
  if (path_.empty()) return;
  require_regular_file(path_, "expected a file of JSON lines; what comes through a pipe goes to standard input");
  file_.open(path_);
}

}  // namespace tandem::cli
