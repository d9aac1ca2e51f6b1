// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a controller decided, in a file of JSON lines: for those who want to know afterwards, and for the start after, which says what of it
// is no more. Nobody waits for a decision to be on the disk but who ends a step: what is gathered meanwhile goes there at once.

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "tandem/queue/controller.h"

namespace tandem::worker {

/// What a controller did after its state was saved, and what so belongs to no history that goes on.
struct Undone {
  int64_t leases = 0;    ///< that were open at its end
  int64_t finished = 0;  ///< groups
  int64_t updates = 0;   ///< so many versions of the weights

  bool any() const { return leases > 0 || finished > 0 || updates > 0; }
};

/// Ownership  owns its file, which one journal at a time has.
/// Threads    any may add; it owns and joins the one that writes.
/// Blocking   wait_written(), on the disk alone.
/// Errors     UserError that names the file, if it cannot be opened or, by the next wait, was not written.
class Journal {
 public:
  /// Goes on behind what `path` has; a line that was cut short goes. Beyond `most_bytes` what is older lies in `path`.old.
  Journal(std::string path, queue::Incarnation incarnation, data::PolicyVersion version, int64_t most_bytes = 64 << 20);
  /// Writes what is left.
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  /// Of what an earlier one decided after the state of `version` was saved.
  const Undone& undone() const { return undone_; }
  void add(const queue::Decision& decision);
  /// The state of the queue, of `version`, is now what a checkpoint keeps.
  void add_saved(data::PolicyVersion version);
  /// Until all that was added is on the disk; nothing else is waited for, so the disk has it some hundredths of a second later.
  void wait_written();
  /// Times that the disk was asked to keep what was written.
  int64_t num_syncs() const;

 private:
  void add_line(const std::string& line);
  void write_all();
  void write_out(const std::string& lines);
  void open_file();

  const std::string path_;
  const int64_t most_bytes_;
  int file_ = -1;
  int64_t num_bytes_ = 0;     // of it
  Undone undone_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::string waiting_;
  int64_t num_added_ = 0, num_written_ = 0, num_syncs_ = 0, num_waiting_ = 0;
  std::string fault_;
  bool is_closing_ = false;
  std::thread writer_;        // last: it uses all the others
};

/// Of the journal at `path`: what was decided after the state of `version` was last saved or gone on from. Nothing if there is no file.
/// A line that is none of a journal is told to the log, and not counted.
Undone undone_since(const std::string& path, data::PolicyVersion version);

}  // namespace tandem::worker
