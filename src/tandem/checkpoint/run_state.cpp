// SPDX-License-Identifier: Apache-2.0
#include "tandem/checkpoint/run_state.h"

#include <fcntl.h>
#include <stdio.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <tuple>
#include <vector>

#include "tandem/base/error.h"
#include "tandem/base/json_depth.h"
#include "tandem/base/json_file.h"
#include "tandem/base/log.h"
#include "tandem/base/file/durable_file.h"

namespace tandem::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kManifest = "manifest.json";
/// Of the manifest. Raise it when an older program would misread what is written.
constexpr int64_t kManifest_format = 1;

constexpr const char* kStep = "step_";
// A checkpoint that takes the place of another of its step, where the file system cannot exchange the two. It is whole.
constexpr const char* kNew = ".new";

// The N of `step_N` and of `step_N.new`; nullopt for any other name.
std::optional<int64_t> step_of(std::string name) {
  if (name.ends_with(kNew)) name.resize(name.size() - std::strlen(kNew));
  if (!name.starts_with(kStep) || name.size() < 6 || name.size() > 22) return std::nullopt;
  const std::string digits = name.substr(std::strlen(kStep));
  if (digits.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  return std::stoll(digits);
}

// What a process that was killed left of an attempt or a removal. None is under way.
void remove_leftovers(const std::string& root) {
  std::error_code ignored;
  std::vector<fs::path> leftovers;
  for (const fs::directory_entry& entry : fs::directory_iterator(root, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kStep) && name.ends_with(".tmp")) leftovers.push_back(entry.path());
  }
  for (const fs::path& path : leftovers) fs::remove_all(path, ignored);
}

int64_t bytes_of(const std::string& folder) {
  std::error_code ignored;
  int64_t bytes = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder, ignored))
    if (entry.is_regular_file(ignored)) bytes += static_cast<int64_t>(entry.file_size(ignored));
  return bytes;
}

void check(const std::error_code& failed, const std::string& path, const char* operation) {
  if (failed) throw PeerError(path + ": " + operation + " failed: " + failed.message());
}

// What lies below a folder, and itself: files by their paths in it, and whole paths of folders.
struct Below {
  std::vector<std::string> files, folders;
};
Below below(const std::string& folder) {
  std::error_code failed;
  Below found{{}, {folder}};
  const fs::recursive_directory_iterator end;
  for (auto it = fs::recursive_directory_iterator(folder, failed); !failed && it != end; it.increment(failed)) {
    if (it->is_directory()) found.folders.push_back(it->path().string());
    else if (it->is_regular_file()) found.files.push_back(fs::relative(it->path(), folder).generic_string());
  }
  check(failed, folder, "listing the files");
  std::ranges::sort(found.files);
  return found;
}

}  // namespace

std::vector<CheckpointPlace> newest_first(const std::string& root) {
  std::vector<CheckpointPlace> places;
  std::error_code failed;
  const fs::directory_iterator entries(root, failed);
  if (failed && failed != std::errc::no_such_file_or_directory)
    throw UserError(root, "cannot be listed: " + failed.message(), "a readable checkpoint folder");
  for (const fs::directory_entry& entry : entries)
    if (const auto step = step_of(entry.path().filename().string()); step && entry.is_directory())
      places.push_back({*step, entry.path().string()});
  std::sort(places.begin(), places.end(), [](const auto& a, const auto& b) { return std::tie(a.step, a.path) > std::tie(b.step, b.path); });
  return places;
}

std::vector<std::string> files_of(const std::string& folder) { return below(folder).files; }

Sums sums_of(const std::string& tmp_path, std::span<const std::string> names) {
  Sums sums;
  for (const std::string& name : names) sums[name] = file_checksum(tmp_path + "/" + name);
  return sums;
}

CheckpointWriter::CheckpointWriter(std::string root, int64_t keep_last) : root_(std::move(root)), keep_last_(keep_last) {}

std::string CheckpointWriter::path(int64_t step) const { return root_ + "/step_" + std::to_string(step); }
std::string CheckpointWriter::tmp_path(int64_t step) const { return path(step) + ".tmp"; }

std::string CheckpointWriter::begin(int64_t step) {
  std::error_code failed;
  remove_leftovers(root_);
  make_room();
  fs::create_directories(tmp_path(step), failed);
  check(failed, tmp_path(step), "creating the folder");
  return tmp_path(step);
}

std::string CheckpointWriter::commit(int64_t step, const Sums& sums) {
  const std::string tmp = tmp_path(step), final = path(step);
  json files = json::object();
  const Below all = below(tmp);
  for (const std::string& name : all.files)
    if (!sums.contains(name)) throw PeerError(tmp + "/" + name + ": no rank knows its checksum");
  for (const auto& [name, sum] : sums) {  // a shared file system may list a file of another machine late, but has it for those who ask
    sync_file(tmp + "/" + name);
    files[name] = {{"bytes", fs::file_size(tmp + "/" + name)}, {"checksum", sum}};
  }
  write_durable(tmp + "/" + kManifest, json({{"format", kManifest_format}, {"step", step}, {"files", files}}).dump(1) + "\n");
  for (const std::string& folder : all.folders) sync_directory(folder);
  put_in_place(tmp, final);
  sync_directory(root_);
  move_latest(fs::path(final).filename().string());
  remove_leftovers(root_);
  whole_step_ = step;
  prune(step);
  return final;
}

// A resumed run may reach a step that has a checkpoint. There is a whole one at every moment: `final`, or beside it the new one.
void CheckpointWriter::put_in_place(const std::string& tmp, const std::string& final) const {
  std::error_code failed;
  const std::string next = final + kNew;
  if (!fs::exists(final, failed) && !fs::exists(next, failed)) {
    fs::rename(tmp, final, failed);
    return check(failed, final, "renaming the new checkpoint");
  }
  if (!fs::exists(next, failed) && ::renameat2(AT_FDCWD, tmp.c_str(), AT_FDCWD, final.c_str(), RENAME_EXCHANGE) == 0) return;
  const std::string left = final + ".left.tmp";  // there is none: leftovers are removed before
  const auto swap_in = [&] {
    if (fs::exists(final, failed)) {
      fs::rename(final, left, failed);
      check(failed, final, "renaming the old checkpoint");
    }
    fs::rename(next, final, failed);
    check(failed, final, "renaming the new checkpoint");
    fs::remove_all(left, failed);
  };
  if (fs::exists(next, failed)) swap_in();  // of a process that was killed in between
  fs::rename(tmp, next, failed);
  check(failed, next, "renaming the new checkpoint");
  swap_in();
}

// Where the disk has no room for a checkpoint like the last, what the next commit would remove goes before it is written. Checkpoints of
// later steps than the one that the run goes on from are damaged.
void CheckpointWriter::make_room() const {
  std::error_code failed;
  const std::vector<CheckpointPlace> places = newest_first(root_);
  if (places.empty() || !whole_step_) return;
  const fs::space_info space = fs::space(root_, failed);
  if (failed || static_cast<int64_t>(space.available) > bytes_of(places.front().path)) return;
  int64_t kept = 1;  // the next one
  for (const CheckpointPlace& place : places) {
    if (place.step == *whole_step_) ++kept;
    else if (place.step > *whole_step_ || (keep_last_ > 0 && kept++ >= keep_last_)) remove(place);
  }
}

// Under a name that newest_first ignores, so that an interrupted removal leaves no half checkpoint.
void CheckpointWriter::remove(const CheckpointPlace& place) {
  std::error_code failed;
  const std::string doomed = place.path + ".old.tmp";
  fs::rename(place.path, doomed, failed);
  if (!failed) fs::remove_all(doomed, failed);
  if (failed) log::warning(place.path, ": an old checkpoint cannot be removed: ", failed.message());
}

void CheckpointWriter::abandon(int64_t step) noexcept {
  std::error_code ignored;
  fs::remove_all(tmp_path(step), ignored);
}

void CheckpointWriter::goes_on_from(const CheckpointPlace& place) {
  whole_step_ = place.step;
  const std::string name = fs::path(place.path).filename().string();
  std::error_code none;
  if (fs::read_symlink(root_ + "/latest", none) == name) return;
  try {
    move_latest(name);
  } catch (const PeerError& e) {
    log::warning(e.what(), "; the run goes on from ", name);
  }
}

void CheckpointWriter::move_latest(const std::string& name) {
  const std::string link = root_ + "/latest", next = link + ".tmp";
  std::error_code failed;
  fs::remove(next, failed);
  fs::create_directory_symlink(name, next, failed);
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
    remove(place);
  }
}

std::string readable_fault(const std::string& checkpoint, const Share& share) {
  try {
    return manifest_fault(checkpoint, share);
  } catch (const PeerError& e) {
    return e.what();
  }
}

std::string manifest_fault(const std::string& checkpoint, const Share& share) {
  const std::string path = checkpoint + "/" + kManifest;
  if (!fs::is_regular_file(path)) return "it has no manifest";
  const json manifest = parse_or_discard<json>(read_file(path, kMostJsonFileBytes));
  if (manifest.is_object()) check_format(manifest.value("format", json()), checkpoint + "/" + kManifest, kManifest_format);
  if (!manifest.is_object() || !manifest.contains("files") || !manifest["files"].is_object()) return "its manifest is damaged";
  if (manifest["files"].empty()) return "its manifest names no file";
  const auto step = step_of(fs::path(checkpoint).filename().string());
  if (step && manifest.contains("step") && manifest["step"] != *step) return "its manifest is that of step " + manifest["step"].dump();
  int number = 0;
  for (const auto& [name, expected] : manifest["files"].items()) {
    if (number++ % share.size != share.rank) continue;
    const std::string file = checkpoint + "/" + name;
    std::error_code missing;
    const auto bytes = fs::file_size(file, missing);
    if (missing) return name + " is missing";
    if (!expected.is_object()) return "its manifest is damaged at " + name;
    if (expected.value("bytes", json()) != bytes)
      return name + " is " + std::to_string(bytes) + " bytes long, not " + expected.value("bytes", json()).dump();
    if (expected.value("checksum", json()) != file_checksum(file)) return name + " does not match its checksum";
  }
  return "";
}

std::optional<CheckpointPlace> first_whole(const std::string& root, const std::vector<CheckpointPlace>& places,
                                           const std::function<std::string(const CheckpointPlace&)>& fault_of) {
  std::string faults;
  for (const CheckpointPlace& place : places) {
    const std::string fault = fault_of(place);
    if (fault.empty()) return place;
    faults += (faults.empty() ? "" : "; ") + place.path + ": " + fault;
  }
  // To start over would remove these folders later.
  if (!faults.empty())
    throw UserError(root, "no checkpoint is whole: " + faults, "one of them restored, or another --run-dir to start anew");
  return std::nullopt;
}

}  // namespace tandem::checkpoint
