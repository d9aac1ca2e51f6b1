// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checkpoints of a run that are either whole or absent: written beside, then committed by one rename, or by an exchange with the one of
// the same step that is there.
//
//   <root>/step_40.tmp/...  ->  manifest.json, fsync  ->  <root>/step_40/  ->  <root>/latest -> step_40

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tandem/base/file/checksum.h"

namespace tandem::checkpoint {

struct CheckpointPlace {
  int64_t step;
  std::string path;
};

/// Which of the ranks' shares of a manifest's files this is: file i of their sorted names belongs to rank i modulo `size`.
struct Share {
  int rank = 0, size = 1;
};
/// Paths in a folder of all files below it, sorted. Errors: PeerError naming the folder.
std::vector<std::string> files_of(const std::string& folder);
/// Of some files of an attempt. Errors: PeerError naming the path.
Sums sums_of(const std::string& tmp_path, std::span<const std::string> names);

/// Threads    one writer per rank; files of one step may be written by several ranks under tmp_path(step).
/// Blocking   on the disk only. Barriers between ranks are the caller's:
///            rank 0 begin() | barrier | all write under tmp_path() | barrier | rank 0 commit() with the sums of all.
/// Errors     PeerError naming the path when the disk is full or unwritable; earlier checkpoints are untouched.
class CheckpointWriter {
 public:
  /// Keeps the newest `keep_last` checkpoints; 0 keeps all.
  CheckpointWriter(std::string root, int64_t keep_last);

  /// Makes an empty folder for the step, dropping what interrupted attempts and removals left. Where the disk is short, what the next
  /// commit would remove goes first, but never the last whole checkpoint. Returns tmp_path(step).
  std::string begin(int64_t step);
  std::string tmp_path(int64_t step) const;
  std::string path(int64_t step) const;
  /// Writes the manifest with these checksums, makes all durable, renames, moves `latest`, prunes. Checkpoints of later steps go too:
  /// the run has left that history. Returns path(step). Errors: PeerError if a file has no checksum.
  std::string commit(int64_t step, const Sums& sums);
  /// The run goes on from this checkpoint, which is whole: it stays until the next is committed. `latest` names it from now on, also where
  /// a kill left it behind. Errors: none; where the link cannot be moved a warning says so.
  void goes_on_from(const CheckpointPlace& place);
  /// Drops an attempt that failed. Never throws.
  void abandon(int64_t step) noexcept;

 private:
  void put_in_place(const std::string& tmp, const std::string& final) const;
  void make_room() const;
  static void remove(const CheckpointPlace& place);
  void move_latest(const std::string& name);
  void prune(int64_t committed);
  std::string root_;
  int64_t keep_last_;
  std::optional<int64_t> whole_step_;  // of the last commit, or of a resume
};

/// What is wrong with a committed checkpoint, where only this share of the files is read; "" if nothing. Errors: UserError for a
/// manifest of a newer format.
std::string manifest_fault(const std::string& checkpoint, const Share& share = {});

/// The same; a file that cannot be read is a fault, too.
std::string readable_fault(const std::string& checkpoint, const Share& share = {});

/// All of `root`, the newest first, whole or not. Errors: UserError if it cannot be listed.
std::vector<CheckpointPlace> newest_first(const std::string& root);
/// The first of `places` without a fault, as `fault_of` tells; nullopt if there are none. Errors: UserError if there are some and none is
/// whole.
std::optional<CheckpointPlace> first_whole(const std::string& root, const std::vector<CheckpointPlace>& places,
                                           const std::function<std::string(const CheckpointPlace&)>& fault_of);

}  // namespace tandem::checkpoint
