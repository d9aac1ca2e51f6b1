// SPDX-License-Identifier: Apache-2.0
#pragma once
// What all c10d groups of one process share: the store through which ranks find and blame each other, and the messages
// that are still on their way.

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tandem/comm/backend/c10d/library.h"
#include "tandem/comm/launch.h"

namespace tandem::comm {

class Outbox;

/// Ownership  the connection to the store, every backend, and an outbox for each direction in which messages were sent.
/// Threads    any.
/// Blocking   finish, wait_for_watched, all_ended, and connect as far as the library waits for its peers.
/// Errors     PeerError; after the first, every wait ends with its reason.
class C10dJob {
 public:
  C10dJob(c10::intrusive_ptr<::c10d::Store> store, Place world, Library library);
  ~C10dJob();
  C10dJob(const C10dJob&) = delete;
  C10dJob& operator=(const C10dJob&) = delete;

  /// The job works beside that group of the same ranks, which must outlive it: each dies with the other, and the end of the job waits as
  /// long as the group lives. Before its first group.
  void stand_beside(Group& host) { host_ = &host; }

  int rank() const { return world_.rank; }
  int size() const { return world_.size; }
  double deadline_s() const { return world_.deadline_s; }
  const Library& library() const { return library_; }

  /// This rank's part of a group, which stands until disconnect or the end of the job; `group` is the same on its ranks and unlike
  /// that of any other group of the job.
  c10::intrusive_ptr<::c10d::Backend> connect(const std::string& group, int rank, int size);
  /// The backend of a group that goes: nothing is under way in it.
  void disconnect(const c10::intrusive_ptr<::c10d::Backend>& backend) noexcept;
  /// Messages to one rank of a group; they outlive the group.
  Outbox& outbox(const std::string& lane);

  /// A wait for peers: how errors name it, and the ranks of the world it may be for.
  struct Wait {
    std::string place;
    std::vector<int> peers;
    bool has_deadline = true;
    bool is_watch = false;  // by a thread that leaves the cores to others
  };
  /// Returns when `ranks` ranks have come here with that key: the library itself connects a group in its first operation, and while it does
  /// nobody can end that. Errors: as finish.
  void meet(const std::string& key, int ranks, const Wait& wait);
  /// Whether another has come there before this one.
  bool has_come(const std::string& key);
  /// Returns once the device has done the work. Errors: PeerError when it failed, is late, or the job is dead.
  void finish(::c10d::Work& work, const Wait& wait);
  /// A thread of the job waits for it, behind what is watched already, in place of the caller; what finish would throw ends the job.
  void watch(const std::string& group, c10::intrusive_ptr<::c10d::Work> work, Wait wait);
  /// Returns when nothing of that group is watched, each of which has its deadline.
  void wait_for_watched(const std::string& group);

  /// Tells every rank and wakes those that wait; the first reason of the job stays. Never throws.
  void abort(const std::string& reason) noexcept;
  /// This rank waits for nothing any more; the others hear nothing of it.
  void leave() noexcept;
  /// The reason the job is dead, "" while it lives.
  std::string death();
  void throw_if_dead(const std::string& place);
  /// After a fault of the library at `place`: throws the death of the job, if there is one that this rank has not heard of. The store of
  /// rank 0 may end before the reason is here.
  void throw_if_dead_by_others(const std::string& place);
  /// Whether the reason is one that this rank gave.
  bool is_culprit();
  /// `e` ends this rank's part. If the job was dead before, and `e` does not tell of it, it may come of worthless numbers: throws the death
  /// in its place.
  void throw_death_for(const std::exception& e);

  /// Waits until every rank has ended its body and its messages are taken. Errors: PeerError naming who is late, or the message.
  void all_ended();

 private:
  void end(::c10d::Backend& backend) const noexcept;
  void wait_until(const std::function<bool()>& is_done, const Wait& wait);
  void die(const std::string& reason, bool by_me);
  void look_for_notice();
  void set_waiting(const std::string& place);
  void set_moving();
  std::string blame(const std::vector<int>& peers);
  void wait_for_end(const std::string& key);
  void watch_all();

  const c10::intrusive_ptr<::c10d::Store> store_;
  const Place world_;
  const Library library_;
  Group* host_ = nullptr;
  std::mutex mutex_;
  std::vector<c10::intrusive_ptr<::c10d::Backend>> backends_;
  std::map<std::string, std::unique_ptr<Outbox>> outboxes_;
  std::mutex waiting_mutex_;
  int num_waiting_ = 0;
  bool is_culprit_ = false;
  std::string reason_;

  std::mutex watch_mutex_;
  std::condition_variable watch_changed_;
  struct Watched {
    std::string group;
    c10::intrusive_ptr<::c10d::Work> work;
    Wait wait;
  };
  std::deque<Watched> watched_;  // the first until it is done
  bool has_ended_ = false;
  std::thread watcher_;  // from the first of them on
};

/// The world of the job as a group. The job must outlive it and the groups split from it.
std::unique_ptr<Group> c10d_world(C10dJob& job);

/// Runs `body` as this rank of the job. Errors: those of run_c10d.
void run_job(C10dJob& job, const RankBody& body);

}  // namespace tandem::comm
