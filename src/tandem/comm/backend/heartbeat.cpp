// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/backend/heartbeat.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/log.h"

namespace tandem::comm {

Heartbeat::Heartbeat(int rank, std::vector<Link> links, Hooks hooks)
    : rank_(rank), hooks_(std::move(hooks)), peers_(links.size()) {
  const bool hears = rank == 0 || links[0].is_open();
  for (size_t r = 0; r < links.size(); ++r) {
    peers_[r].is_watched = hears && (rank != 0 || links[r].is_open());
    peers_[r].link = std::move(links[r]);
  }
  thread_ = std::thread([this] { loop(); });
}

Heartbeat::~Heartbeat() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_up_.call();
  thread_.join();
}

std::vector<int> Heartbeat::lost() {
  return ranks_that([](const Peer& p) { return p.is_lost(); });
}

std::vector<int> Heartbeat::stuck() {
  return ranks_that([](const Peer& p) { return p.is_stuck && !p.is_lost(); });
}

template <class Test>
std::vector<int> Heartbeat::ranks_that(Test test) {
  std::lock_guard lock(mutex_);
  std::vector<int> ranks;
  for (size_t r = 0; r < peers_.size(); ++r)
    if (test(peers_[r])) ranks.push_back(static_cast<int>(r));
  return ranks;
}

void Heartbeat::say_done() {
  {
    std::lock_guard lock(mutex_);
    says_done_ = true;
  }
  wake_up_.call();
}

bool Heartbeat::all_done(double seconds) {
  std::unique_lock lock(mutex_);
  const auto is_over = [&] {
    if (peers_[0].is_lost()) return true;
    return std::ranges::all_of(peers_, [&](const Peer& p) { return &p == &peer(rank_) || !p.is_watched || p.is_lost() || p.is_done; });
  };
  return changed_.wait_for(lock, duration_of_s(seconds), is_over) && !peers_[0].is_lost();
}

void Heartbeat::loop() {
  for (bool ends = false; !ends;) {
    wait_for_news();
    std::vector<int> died;
    {
      std::lock_guard lock(mutex_);
      for (int r = 0; r < static_cast<int>(peers_.size()); ++r)
        if (peer(r).link.is_open()) read(r);
      if (std::exchange(says_done_, false)) tell({News::kDone, rank_});
      if (Clock::now() >= next_beat_) beat();
      find_silent();
      ends = ends_;
      if (ends) tell({News::kBye, rank_});
      died.swap(died_);
    }
    changed_.notify_all();
    for (int r : died) hooks_.died(r);
    if (!ends) hooks_.each_beat(*this);
  }
}

void Heartbeat::wait_for_news() {
  std::vector<pollfd> watched{{wake_up_.descriptor(), POLLIN, 0}};
  for (const Peer& p : peers_)
    if (p.link.is_open()) watched.push_back({p.link.socket(), POLLIN, 0});
  const double left_s = std::chrono::duration<double>(next_beat_ - Clock::now()).count();
  if (left_s > 0) poll(watched.data(), watched.size(), static_cast<int>(left_s * 1000) + 1);
  wake_up_.heard();
}

void Heartbeat::read(int rank) {
  Peer& p = peer(rank);
  for (const Fact& fact : p.link.receive()) {
    p.heard = Clock::now();
    if (p.is_silent) {
      learn({News::kHeard, rank});
      if (rank_ == 0) tell({News::kHeard, rank});
    }
    if (fact.news == News::kBeat || fact.rank < 0 || fact.rank >= static_cast<int>(peers_.size())) continue;
    learn(fact);
    if (rank_ == 0) tell(fact);
  }
  if (p.link.is_open() || !p.is_watched) return;
  learn({News::kGone, rank});
  if (rank_ == 0) tell({News::kGone, rank});
}

void Heartbeat::learn(const Fact& fact) {
  Peer& p = peer(fact.rank);
  if (fact.rank == rank_ || !p.is_watched) return;
  const auto warn = [&](const char* what) { log::warning("rank ", rank_, ": rank ", fact.rank, " ", what); };
  switch (fact.news) {
    case News::kBeat: break;
    case News::kStuck: p.is_stuck = true; break;
    case News::kMoving: p.is_stuck = false; break;
    case News::kSilent: p.is_silent = true, warn("sends no heartbeat: it is stopped or cut off"); break;
    case News::kHeard: p.is_silent = false, warn("sends heartbeats again"); break;
    case News::kGone: p.is_gone = true, died_.push_back(fact.rank), warn("is gone: its process died"); break;
    case News::kDone: p.is_done = true; break;
    case News::kBye: p.is_done = true, p.is_watched = false; break;
  }
}

/// To all, except the rank it is about.
void Heartbeat::tell(const Fact& fact) {
  for (int r = 0; r < static_cast<int>(peers_.size()); ++r)
    if (r != fact.rank) peer(r).link.send(fact);
}

void Heartbeat::beat() {
  next_beat_ = Clock::now() + duration_of_s(kBeat_s);
  if (const bool is_stuck = hooks_.is_stuck(); is_stuck != peer(rank_).is_stuck) {
    peer(rank_).is_stuck = is_stuck;
    tell({is_stuck ? News::kStuck : News::kMoving, rank_});
  }
  for (Peer& p : peers_) p.link.send({News::kBeat, rank_});
}

void Heartbeat::find_silent() {
  const Clock::time_point now = Clock::now();
  // Who has been stopped itself cannot say that the others were silent.
  const bool slept = now - last_round_ > duration_of_s(kSilent_s / 2);
  last_round_ = now;
  for (int r = 0; r < static_cast<int>(peers_.size()); ++r) {
    Peer& p = peer(r);
    if (slept) p.heard = now;
    if (!p.link.is_open() || !p.is_watched || p.is_silent || now - p.heard < duration_of_s(kSilent_s)) continue;
    learn({News::kSilent, r});
    if (rank_ == 0) tell({News::kSilent, r});
  }
}

}  // namespace tandem::comm
