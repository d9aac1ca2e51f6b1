// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checkpoints of a run that are either whole or absent: written beside, then committed by one rename.
//
//   <root>/step_40.tmp/...  ->  manifest.json, fsync  ->  <root>/step_40/  ->  <root>/latest -> step_40

#include <cstdint>
#include <optional>
#include <string>

namespace tandem::checkpoint {

/// Threads    one writer per rank; files of one step may be written by several ranks under tmp_path(step).
/// Blocking   on the disk only. Barriers between ranks are the caller's:
///            rank 0 begin() | barrier | all write under tmp_path() | barrier | rank 0 commit().
/// Errors     PeerError naming the path when the disk is full or unwritable; earlier checkpoints are untouched.
class CheckpointWriter {
 public:
  /// Keeps the newest `keep_last` checkpoints; 0 keeps all.
  CheckpointWriter(std::string root, int64_t keep_last);

  /// Makes an empty folder for the step, dropping what an interrupted attempt left. Returns tmp_path(step).
  std::string begin(int64_t step);
  std::string tmp_path(int64_t step) const;
  std::string path(int64_t step) const;
  /// Writes the manifest, makes all durable, renames, moves `latest`, prunes. Checkpoints of later steps go too: the run has
  /// left that history. Returns path(step).
  std::string commit(int64_t step);
  /// Drops an attempt that failed. Never throws.
  void abandon(int64_t step) noexcept;

 private:
  void move_latest(int64_t step);
  void prune(int64_t committed);
  std::string root_;
  int64_t keep_last_;
};

struct CheckpointPlace {
  int64_t step;
  std::string path;
};

/// The newest checkpoint under `root` whose files all match their manifest; damaged ones are passed over with a warning.
/// nullopt if there is none at all. Errors: UserError if there are some and none is whole, if the manifest of the newest has a newer
/// format, or if `root` cannot be listed.
std::optional<CheckpointPlace> find_latest(const std::string& root);

/// What is wrong with a committed checkpoint; "" if nothing. Errors: UserError for a manifest of a newer format.
std::string manifest_fault(const std::string& checkpoint);

}  // namespace tandem::checkpoint
