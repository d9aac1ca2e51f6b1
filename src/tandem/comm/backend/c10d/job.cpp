// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/backend/c10d/job.h"

#include <sched.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <unistd.h>

#include <algorithm>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/comm/backend/c10d/outbox.h"

namespace tandem::comm {
namespace {

constexpr double kStuck_s = 0.5;  // who has waited so long is not to blame for what others miss
constexpr double kReport_s = 2;   // a rank that has ended leaves it to one that waits in vain to say so
constexpr useconds_t kWatch_us = 200;  // between looks at what was begun
constexpr double kLook_s = 0.1;   // between looks into the store for the notice of another rank
const std::string kDead = "tandem/dead";

std::string waiting_key(int rank) { return "tandem/waiting/" + std::to_string(rank); }
std::string met_key(const std::string& key) { return "tandem/met/" + key; }

}  // namespace

C10dJob::C10dJob(c10::intrusive_ptr<::c10d::Store> store, Place world, Library library)
    : store_(std::move(store)), world_(std::move(world)), library_(std::move(library)) {
  library_.enter_thread();
}

C10dJob::~C10dJob() {
  {
    std::lock_guard lock(watch_mutex_);
    has_ended_ = true;
    watch_changed_.notify_all();
  }
  if (watcher_.joinable()) watcher_.join();
  outboxes_.clear();
  // Nothing is under way any more. The way of ending that waits for the peers would need one order of groups on all ranks.
  for (const auto& backend : backends_) end(*backend);
}

void C10dJob::end(::c10d::Backend& backend) const noexcept {
  try {
    library_.abort(backend);
  } catch (const std::exception& e) {
    log::write("warning", join_text("rank ", rank(), ": ", library_.name, " does not end a group: ", e.what()));
  }
}

void C10dJob::disconnect(const c10::intrusive_ptr<::c10d::Backend>& backend) noexcept {
  {
    std::lock_guard lock(mutex_);
    std::erase(backends_, backend);
  }
  end(*backend);
}

c10::intrusive_ptr<::c10d::Backend> C10dJob::connect(const std::string& group, int rank, int size) {
  // A connection of its own: one that waits for a key holds up all others who use it.
  const auto store = c10::make_intrusive<::c10d::PrefixStore>(group, store_->clone());
  auto backend = library_.connect({store, rank, size, group, world_.deadline_s});
  std::lock_guard lock(mutex_);
  backends_.push_back(backend);
  return backend;
}

Outbox& C10dJob::outbox(const std::string& lane) {
  std::lock_guard lock(mutex_);
  std::unique_ptr<Outbox>& box = outboxes_[lane];
  if (!box) box = std::make_unique<Outbox>(*this, lane);
  return *box;
}

void C10dJob::wait_until(const std::function<bool()>& is_done, const Wait& wait) {
  const Deadline deadline = Deadline::after_s(world_.deadline_s), patience = Deadline::after_s(kStuck_s);
  Deadline look = Deadline::after_s(kLook_s);
  bool is_stuck = false;
  for (int64_t round = 0; !is_done(); ++round) {
    if (round % 64 != 63 && !wait.is_watch) continue;
    if (wait.has_deadline && !is_stuck && patience.passed()) is_stuck = true, set_waiting(wait.place);
    if (look.passed()) look_for_notice(), look = Deadline::after_s(kLook_s);
    throw_if_dead(wait.place);
    if (wait.has_deadline && deadline.passed()) {
      const std::string reason = join_text(wait.place, ": ", blame(wait.peers));
      abort(reason);
      throw PeerError(reason);
    }
    wait.is_watch ? static_cast<void>(usleep(kWatch_us)) : round < 4096 ? static_cast<void>(sched_yield()) : static_cast<void>(usleep(50));
  }
  throw_if_dead(wait.place);  // an abort completes the work, too
  if (is_stuck) set_moving();
}

void C10dJob::meet(const std::string& key, int ranks, const Wait& wait) {
  constexpr useconds_t kPause_us = 500;
  const std::string place = met_key(key);
  if (store_->add(place, 1) >= ranks) return;
  wait_until([&] { return usleep(kPause_us), store_->add(place, 0) >= ranks; }, wait);
}

bool C10dJob::has_come(const std::string& key) { return store_->add(met_key(key), 0) > 0; }

void C10dJob::finish(::c10d::Work& work, const Wait& wait) {
  wait_until([&] { return work.isCompleted(); }, wait);
  if (work.exception()) std::rethrow_exception(work.exception());
  work.synchronize();
}

void C10dJob::watch(const std::string& group, c10::intrusive_ptr<::c10d::Work> work, Wait wait) {
  wait.is_watch = true;
  std::lock_guard lock(watch_mutex_);
  if (!watcher_.joinable()) watcher_ = std::thread([this] { watch_all(); });
  watched_.push_back({group, std::move(work), std::move(wait)});
  watch_changed_.notify_all();
}

void C10dJob::watch_all() {
  std::unique_lock lock(watch_mutex_);
  for (;;) {
    watch_changed_.wait(lock, [&] { return has_ended_ || !watched_.empty(); });
    if (watched_.empty()) return;
    const auto [group, work, wait] = watched_.front();
    lock.unlock();
    try {
      library_.enter_thread();
      wait_until([&] { return work->isCompleted(); }, wait);
      if (work->exception()) std::rethrow_exception(work->exception());
    } catch (const PeerError&) {  // the job is dead, and knows why
    } catch (const c10::Error& e) {
      abort(join_text(wait.place, ": ", e.what_without_backtrace()));
    } catch (const std::exception& e) {
      abort(join_text(wait.place, ": ", e.what()));
    }
    lock.lock();
    watched_.pop_front();
    watch_changed_.notify_all();
  }
}

void C10dJob::wait_for_watched(const std::string& group) {
  std::unique_lock lock(watch_mutex_);
  watch_changed_.wait(lock, [&] { return std::ranges::none_of(watched_, [&](const Watched& each) { return each.group == group; }); });
}

void C10dJob::abort(const std::string& reason) noexcept {
  if (host_ && host_->death().empty()) host_->abort(reason);  // first: who hears of it here finds the reason there
  try {
    std::string first = reason;
    try {
      first = store_->compareSet(kDead, std::string(), reason);
    } catch (const std::exception&) {  // rank 0, which keeps the store, is gone
    }
    die(first, first == reason);
  } catch (const std::exception&) {
  }
}

void C10dJob::leave() noexcept {
  try {
    die(join_text("rank ", rank(), " has left"), true);
  } catch (const std::exception&) {
  }
}

void C10dJob::die(const std::string& reason, bool by_me) {
  std::vector<c10::intrusive_ptr<::c10d::Backend>> backends;
  {
    std::lock_guard lock(mutex_);
    if (!reason_.empty()) return;
    reason_ = reason;
    is_culprit_ = by_me;
    backends = backends_;
  }
  for (const auto& backend : backends) end(*backend);
}

std::string C10dJob::death() {
  std::lock_guard lock(mutex_);
  return reason_;
}

bool C10dJob::is_culprit() {
  std::lock_guard lock(mutex_);
  return is_culprit_;
}

void C10dJob::throw_if_dead(const std::string& place) {
  const std::string reason = death();
  if (reason.empty()) return;
  const std::string what = join_text(place, " ended: ", reason);
  if (is_culprit()) throw PeerError(what);
  throw EndedByPeer(what);
}

void C10dJob::throw_if_dead_by_others(const std::string& place) {
  constexpr double kMoment_s = 0.5;
  for (const Deadline moment = Deadline::after_s(kMoment_s); host_ && host_->death().empty() && !moment.passed();) usleep(1000);
  if (death().empty()) look_for_notice();
  throw_if_dead(place);
}

void C10dJob::throw_death_for(const std::exception& e) {
  const std::string reason = death();
  if (reason.empty() || (dynamic_cast<const PeerError*>(&e) && std::string(e.what()).find(reason) != std::string::npos)) return;
  const std::string what = join_text("rank ", rank(), " ended: ", reason);
  if (is_culprit()) throw PeerError(what);
  throw EndedByPeer(what);
}

void C10dJob::look_for_notice() {
  if (const std::string reason = host_ ? host_->death() : ""; !reason.empty()) return die(reason, false);
  try {
    if (store_->check({kDead})) die(store_->get_to_str(kDead), false);
  } catch (const std::exception& e) {
    if (rank() != 0) die("the store of rank 0 does not answer: rank 0 is gone", false);
  }
}

void C10dJob::set_waiting(const std::string& place) {
  std::lock_guard lock(waiting_mutex_);
  if (num_waiting_++ == 0) store_->set(waiting_key(rank()), place);
}

void C10dJob::set_moving() {
  std::lock_guard lock(waiting_mutex_);
  if (--num_waiting_ == 0) store_->set(waiting_key(rank()), std::string());
}

std::string C10dJob::blame(const std::vector<int>& peers) {
  std::vector<int> guilty;
  for (int r : peers)
    if (r != rank() && !(store_->check({waiting_key(r)}) && !store_->get(waiting_key(r)).empty())) guilty.push_back(r);
  std::string whom;
  for (int r : guilty.empty() ? peers : guilty)
    if (r != rank()) whom += join_text(whom.empty() ? "rank " : ", rank ", r);
  return join_text("no sign of ", whom, guilty.empty() ? ", all waiting for others," : "", " within ", world_.deadline_s, " s");
}

void C10dJob::wait_for_end(const std::string& key) {
  const Deadline deadline = Deadline::after_s(world_.deadline_s + kReport_s);
  while (store_->add(key, 0) < size()) {
    look_for_notice();
    throw_if_dead(join_text("rank ", rank(), ": the end"));
    if (!host_ && deadline.passed()) throw PeerError(join_text("rank ", rank(), ": a rank did not end within ", world_.deadline_s, " s"));
    usleep(2000);
  }
}

void C10dJob::all_ended() try {
  store_->add("tandem/ended", 1);
  wait_for_end("tandem/ended");
  for (const auto& [lane, box] : outboxes_) box->check_delivered();
  store_->add("tandem/left", 1);
  if (rank() == 0) wait_for_end("tandem/left");  // it keeps the store
} catch (const c10::Error& e) {
  throw PeerError(join_text("rank ", rank(), ": the store of rank 0 does not answer at the end: ", e.what_without_backtrace()));
}

void run_job(C10dJob& job, const RankBody& body) {
  try {
    try {
      const std::unique_ptr<Group> world = c10d_world(job);
      body(*world);
      job.all_ended();
    } catch (const std::exception& e) {
      job.throw_death_for(e);
      throw;
    }
  } catch (const std::exception& e) {
    job.abort(join_text("rank ", job.rank(), " failed: ", e.what()));
    const bool heard_of_another = dynamic_cast<const PeerError*>(&e) && !job.is_culprit();
    if (job.rank() == 0) usleep(500000);  // the others read the reason in its store
    if (heard_of_another) throw ReportedElsewhere(exit_code_of(e), e.what());
    throw;
  }
}

}  // namespace tandem::comm
