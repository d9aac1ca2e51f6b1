// SPDX-License-Identifier: Apache-2.0
#include "tandem/checkpoint/run_state.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "tandem/base/error.h"
#include "tandem/base/json_depth.h"
#include "tandem/base/json_file.h"
#include "tandem/base/log.h"
#include "tandem/checkpoint/durable_file.h"

namespace tandem::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kManifest = "manifest.json";
/// Of the manifest. Raise it when an older program would misread what is written.
constexpr int64_t kManifest_format = 1;

std::string hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

// The N of `step_N`; nullopt for any other name.
std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with("step_") || name.size() < 6 || name.size() > 22) return std::nullopt;
  const std::string digits = name.substr(5);
  if (digits.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  return std::stoll(digits);
}

std::vector<CheckpointPlace> newest_first(const std::string& root) {
  std::vector<CheckpointPlace> places;
  std::error_code failed;
  const fs::directory_iterator entries(root, failed);
  if (failed && failed != std::errc::no_such_file_or_directory)
    throw UserError(root, "cannot be listed: " + failed.message(), "a readable checkpoint folder");
  for (const fs::directory_entry& entry : entries)
    if (const auto step = step_of(entry.path().filename().string()); step && entry.is_directory())
      places.push_back({*step, entry.path().string()});
  std::sort(places.begin(), places.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  return places;
}

void check(const std::error_code& failed, const std::string& path, const char* operation) {
  if (failed) throw PeerError(path + ": " + operation + " failed: " + failed.message());
}

}  // namespace

CheckpointWriter::CheckpointWriter(std::string root, int64_t keep_last) : root_(std::move(root)), keep_last_(keep_last) {}

std::string CheckpointWriter::path(int64_t step) const { return root_ + "/step_" + std::to_string(step); }
std::string CheckpointWriter::tmp_path(int64_t step) const { return path(step) + ".tmp"; }

std::string CheckpointWriter::begin(int64_t step) {
  std::error_code failed;
  fs::remove_all(tmp_path(step), failed);
  check(failed, tmp_path(step), "removing an old attempt");
  fs::create_directories(tmp_path(step), failed);
  check(failed, tmp_path(step), "creating the folder");
  return tmp_path(step);
}

std::string CheckpointWriter::commit(int64_t step) {
  const std::string tmp = tmp_path(step), final = path(step);
  std::error_code failed;
  json files = json::object();
  std::vector<std::string> folders = {tmp};
  for (auto it = fs::recursive_directory_iterator(tmp, failed); !failed && it != fs::recursive_directory_iterator(); it.increment(failed)) {
    if (it->is_directory()) {
      folders.push_back(it->path().string());
    } else if (it->is_regular_file()) {
      const std::string file = it->path().string();
      sync_file(file);
      files[fs::relative(it->path(), tmp).generic_string()] = {{"bytes", it->file_size()}, {"checksum", hex(file_checksum(file))}};
    }
  }
  check(failed, tmp, "listing the files");
  write_durable(tmp + "/" + kManifest, json({{"format", kManifest_format}, {"step", step}, {"files", files}}).dump(1) + "\n");
  for (const std::string& folder : folders) sync_directory(folder);
  const std::string replaced = final + ".replaced.tmp";
  fs::remove_all(replaced, failed);
  const bool again = fs::exists(final);  // a resumed run reaches a step it had saved before
  if (again) {
    fs::rename(final, replaced, failed);
    check(failed, final, "renaming the old checkpoint");
  }
  fs::rename(tmp, final, failed);
  check(failed, final, "renaming the new checkpoint");
  sync_directory(root_);
  move_latest(step);
  if (again) fs::remove_all(replaced, failed);
  prune(step);
  return final;
}

void CheckpointWriter::abandon(int64_t step) noexcept {
  std::error_code ignored;
  fs::remove_all(tmp_path(step), ignored);
}

void CheckpointWriter::move_latest(int64_t step) {
  const std::string link = root_ + "/latest", next = link + ".tmp";
  std::error_code failed;
  fs::remove(next, failed);
  fs::create_directory_symlink("step_" + std::to_string(step), next, failed);
  check(failed, next, "linking");
  fs::rename(next, link, failed);
  check(failed, link, "moving the link");
  sync_directory(root_);
}

void CheckpointWriter::prune(int64_t committed) {
  int64_t kept = 0;
  for (const CheckpointPlace& place : newest_first(root_)) {
    const bool left_history = place.step > committed;
    if (!left_history && (keep_last_ <= 0 || kept++ < keep_last_)) continue;
    std::error_code failed;
    // Under a name that find_latest ignores, so that an interrupted removal leaves no half checkpoint.
    const std::string doomed = place.path + ".old.tmp";
    fs::remove_all(doomed, failed);
    fs::rename(place.path, doomed, failed);
    if (!failed) fs::remove_all(doomed, failed);
    if (failed) log::warning(place.path, ": an old checkpoint cannot be removed: ", failed.message());
  }
}

std::string manifest_fault(const std::string& checkpoint) {
  const std::string path = checkpoint + "/" + kManifest;
  if (!fs::is_regular_file(path)) return "it has no manifest";
  const json manifest = parse_or_discard<json>(read_file(path, kMostJsonFileBytes));
  if (manifest.is_object()) check_format(manifest.value("format", json()), checkpoint + "/" + kManifest, kManifest_format);
  if (!manifest.is_object() || !manifest.contains("files") || !manifest["files"].is_object()) return "its manifest is damaged";
  for (const auto& [name, expected] : manifest["files"].items()) {
    const std::string file = checkpoint + "/" + name;
    std::error_code missing;
    const auto bytes = fs::file_size(file, missing);
    if (missing) return name + " is missing";
    if (!expected.is_object() || expected.value("bytes", json()) != bytes)
      return name + " is " + std::to_string(bytes) + " bytes long, not " + expected.value("bytes", json()).dump();
    if (expected.value("checksum", "") != hex(file_checksum(file))) return name + " does not match its checksum";
  }
  return "";
}

std::optional<CheckpointPlace> find_latest(const std::string& root) {
  std::string faults;
  for (const CheckpointPlace& place : newest_first(root)) {
    std::string fault;
    try {
      fault = manifest_fault(place.path);
    } catch (const PeerError& e) {
      fault = e.what();
    }
    if (fault.empty()) return place;
    log::warning(place.path, ": passed over, ", fault);
    faults += (faults.empty() ? "" : "; ") + place.path + ": " + fault;
  }
  // To start over would delete the history and, later, these folders.
  if (!faults.empty())
    throw UserError(root, "no checkpoint is whole: " + faults, "one of them restored, or another --run-dir to start anew");
  return std::nullopt;
}

}  // namespace tandem::checkpoint
