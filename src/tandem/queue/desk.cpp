// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/desk.h"

#include <algorithm>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/queue/body/body.h"

namespace tandem::queue {
namespace {

using AnswerWhat = decltype(Answer::what);

template <class... Each>
struct Cases : Each... {
  using Each::operator()...;
};
template <class... Each>
Cases(Each...) -> Cases<Each...>;  // clang 14 deduces nothing for aggregates

constexpr size_t kMaxClients = 1 << 16;
constexpr const char* kNoTrainer = "who joined here generates, and trains nothing";
constexpr int64_t kMostBegunBytes = 64 << 20;  // of tokens in one answer; groups that have more begin anew
constexpr size_t kMaxFailures = 64, kMaxFailureChars = 4096;
constexpr size_t kMostBarred = 4096;  // signs that are known, and clients that are told of
constexpr size_t kMostNamed = 1 << 16;  // groups in a beat, beside those that there are
constexpr int64_t kMostHeadBytes = 8 << 20;  // of a call, beside tokens

// Of the responses of a group.
int64_t num_tokens(std::span<const int64_t> measures) {
  int64_t tokens = 0;
  for (size_t at = kResponse; at < measures.size(); at += static_cast<size_t>(num_measures())) tokens += measures[at];
  return tokens;
}

int64_t num_tokens(const data::Group& group) {
  int64_t tokens = 0;
  for (const data::Sample& s : group.samples) tokens += std::ssize(s.ids);
  return tokens;
}

}  // namespace

// What the controller takes for granted of a caller of this process.
std::string Desk::fault_of(const call::Put& put, const Client& client) const {
  const SampleQueue& queue = controller_.queue();
  if (put.leases.size() != put.heads.size()) return join_text(put.leases.size(), " leases of ", put.heads.size(), " groups");
  if (put.heads.empty() ? !put.measures.empty() : put.measures.size() % put.heads.size() != 0)
    return join_text(put.measures.size(), " measures of ", put.heads.size(), " groups");
  const int64_t num_samples = std::ssize(put.heads) * queue.group_size();
  if (is_measured_ && std::ssize(put.measures) != num_samples * num_measures())
    return join_text(put.measures.size(), " measures of ", num_samples, " samples");
  const auto width = static_cast<size_t>(queue.group_size() * num_measures());
  for (size_t i = 0; i < put.heads.size(); ++i) {
    const data::Group& head = put.heads[i];
    if (!queue.knows(head.id)) return join_text("group ", value(head.id), " was never leased");
    if (!queue.fits(head)) return join_text("group ", value(head.id), " lacks samples or scores");
    if (queue.is_outstanding(head.id) && (head.version < queue.start_of(head.id) || head.version > queue.version()))
      return join_text("group ", value(head.id), " began at version ", value(head.version), ", and it could not");
    if (!is_measured_) continue;
    const std::string fault =
        fault_of_measures(std::span(put.measures).subspan(i * width, width), head.version, queue.version(), *limits_);
    if (!fault.empty()) return join_text("group ", value(head.id), ' ', fault);
  }
  for (const data::Group& head : put.heads)
    if (const std::string fault = limits_ ? fault_of_scores(head, client.part_names) : std::string(); !fault.empty())
      return join_text("group ", value(head.id), ' ', fault);
  return "";
}

std::string Desk::fault_of(const call::Beat& beat) const {
  GroupLimits of_begun = limits_.value_or(GroupLimits());
  of_begun.route_width = -1;  // its prompt is not there
  const SampleQueue& queue = controller_.queue();
  if (const size_t all = beat.leases.size() + beat.finished.size(); all > kMostNamed + 2 * static_cast<size_t>(queue.num_outstanding()))
    return join_text("a beat that names ", all, " groups");
  std::set<GroupId> named;
  size_t next = 0;
  auto from = beat.from.begin();
  for (const Standing& each : beat.leases) {
    if (!named.insert(each.group).second) return join_text("group ", value(each.group), " stands twice in a beat");
    if (!each.is_reported) continue;
    if (next == beat.begun.size() || beat.begun[next].id != each.group) return join_text("no tokens of group ", value(each.group));
    const data::Group& begun = beat.begun[next++];
    if (!queue.fits(begun, false)) return join_text("group ", value(each.group), " lacks samples");
    for (const data::Sample& sample : begun.samples) {
      if (from == beat.from.end()) return join_text("no place for the tokens of group ", value(each.group));
      const Known known = *from++;
      const std::string fault = limits_ ? fault_of_tokens(sample, 0, PolicyVersion{0}, queue.version(), of_begun) : "";
      if (!fault.empty()) return join_text("group ", value(each.group), ' ', fault);
      if (known.tokens < 0 || known.routes < 0 || known.tokens > of_begun.response_tokens - std::ssize(sample.ids))
        return join_text("group ", value(each.group), " goes on behind token ", known.tokens, ", of at most ", of_begun.response_tokens);
    }
  }
  return next == beat.begun.size() && from == beat.from.end() ? "" : "tokens of a group that is not reported";
}

std::string Desk::fault_of(const call::Commit& commit, const Client& client) const {
  if (!taken_ || taker_ != client.said.store || !controller_.queue().has_taken(commit.step))
    return join_text("step ", value(commit.step), " is not taken by this client");
  if (value(commit.after) != value(controller_.queue().version()) + 1)
    return join_text("step ", value(commit.step), " does not lead to version ", value(commit.after));
  return "";
}

Answer Desk::to(const Call& call, AnswerWhat what) const {
  return {incarnation_, call.number, controller_.queue().version(), std::move(what)};
}

void Desk::forget(WorkerId worker) {
  controller_.leave(worker);
  const auto client = clients_.find(worker);
  if (client == clients_.end()) return;
  by_join_.erase(client->second.join);
  clients_.erase(client);
}

void Desk::expire(double now_s) {
  for (const WorkerId worker : controller_.expire(now_s)) forget(worker);
}

Answer Desk::refused(const Call& call, const std::string& why) {
  ++counters_.refused;
  return to(call, answer::Refused{why});
}

namespace {

// By these a client that was barred is known again.
std::string sign_of(const ClientKey& key) { return join_text("key ", key.first, ' ', key.second); }
std::string sign_of(const Origin& from) { return "line " + from.line; }

}  // namespace

const std::string* Desk::why_barred(const Call& call, const Origin& from) const {
  auto found = barred_.find(sign_of(call.key));
  if (found == barred_.end() && !from.line.empty()) found = barred_.find(sign_of(from));
  return found == barred_.end() ? nullptr : &found->second;
}

void Desk::bar(const Barred& who, const std::vector<std::string>& signs) {
  for (const std::string& sign : signs) {
    if (barred_.size() >= kMostBarred) barred_.erase(barred_.begin());
    barred_[sign] = who.why + ": this worker is refused from now on";
  }
  if (newly_barred_.size() < kMostBarred) newly_barred_.push_back(who);
}

// What it finished before stands or falls by itself: bodies have their own check.
void Desk::bar(WorkerId worker, const std::string& why) {
  const Client& client = clients_.at(worker);
  std::vector<std::string> signs = {sign_of(client.key)};
  if (!client.from.line.empty()) signs.push_back(sign_of(client.from));
  bar({worker, client.from.host, client.said.store, why}, signs);
  forget(worker);
}

void Desk::accuse(GroupId group, const std::string& why) {
  const auto body = bodies_.find(group);
  if (body == bodies_.end() || !clients_.contains(body->second.worker)) return;
  bar(body->second.worker, join_text("group ", value(group), ' ', why));
}

// Of a call that names a client and lacks its key: whoever has the connection answers for it, and the one that is named hears nothing.
Answer Desk::refuse_impostor(const Call& call, const Origin& from) {
  const std::string why = join_text("spoke as worker ", value(call.worker), ", which is another");
  std::vector<WorkerId> own;
  for (const auto& [id, client] : clients_)
    if (!from.line.empty() && client.from.line == from.line) own.push_back(id);
  for (const WorkerId id : own) bar(id, why);
  if (own.empty() && !from.line.empty()) bar({{}, from.host, "", why}, {sign_of(from)});
  return refused(call, why);
}

int64_t Desk::most_call_bytes() const { return kMostReportBytes + kMostHeadBytes + 2 * limits_.value_or(GroupLimits()).group_bytes(); }

Answer Desk::refuse_long(const Call& head, int64_t bytes, const Origin& from) {
  ++counters_.answered;
  if (const std::string* const why = why_barred(head, from)) return refused(head, *why);
  const auto client = clients_.find(head.worker);
  if (client != clients_.end() && client->second.key != head.key) return refuse_impostor(head, from);
  const std::string why = join_text("a call of ", bytes, " bytes, of at most ", most_call_bytes());
  if (client != clients_.end() && limits_) bar(head.worker, why);
  return refused(head, why);
}

Answer Desk::join(const Call& call, double now_s, const Origin& from) {
  const auto& join = std::get<call::Join>(call.verb);
  const auto known = by_join_.find(call.number);
  if (known != by_join_.end() && clients_.at(known->second).key != call.key) return refused(call, "another client joined by that number");
  counters_.repeated += known != by_join_.end();
  if (known != by_join_.end()) {
    (void)controller_.hear_of(known->second, now_s);
    return to(call, answer::Joined{known->second, controller_.queue().group_size(), welcome_});
  }
  if (join.store.size() > kMaxStore || join.dtype.size() > kMaxStore || join.device.size() > kMaxStore || clients_.size() >= kMaxClients)
    return refused(call, join_text("a store of ", join.store.size(), " characters, beside ", clients_.size(), " clients"));
  if (const std::string why = refusal_ ? refusal_(join) : std::string(); !why.empty()) return refused(call, why);
  std::vector<WorkerId> before;  // a connection has one client
  for (const auto& [id, client] : clients_)
    if (!from.line.empty() && client.from.line == from.line) before.push_back(id);
  for (const WorkerId id : before) forget(id);
  const WorkerId worker = controller_.join(now_s);
  clients_[worker] = {.join = call.number, .said = join, .key = call.key, .from = from};
  by_join_[call.number] = worker;
  return to(call, answer::Joined{worker, controller_.queue().group_size(), welcome_});
}

std::optional<Answer> Desk::answer(const Call& call, double now_s, const Origin& from) {
  ++counters_.answered;
  const auto client = clients_.find(call.worker);
  const bool is_its_own = client != clients_.end() && client->second.key == call.key;
  if (has_ended_) {
    if (is_its_own) forget(call.worker);
    return to(call, answer::Ended{});
  }
  if (const std::string* const why = why_barred(call, from)) return refused(call, *why);
  if (std::holds_alternative<call::Join>(call.verb)) return join(call, now_s, from);
  const bool is_other = call.incarnation != incarnation_;
  if (is_other || client == clients_.end()) {
    ++(is_other ? counters_.of_another_incarnation : counters_.of_unknown);
    return to(call, answer::JoinAgain{});
  }
  if (!is_its_own) return refuse_impostor(call, from);
  client->second.from = from;
  (void)controller_.hear_of(call.worker, now_s);
  if (call.number < client->second.last_call) return std::nullopt;
  if (call.number == client->second.last_call) {
    ++counters_.repeated;
    Answer answer = client->second.last_answer;
    if (auto* const leased = std::get_if<answer::Leased>(&answer.what)) fill(*leased);
    return answer;
  }
  const std::string fault = fault_of(call.verb, client->second);
  if (!fault.empty() && limits_) {
    bar(call.worker, fault);
    return refused(call, *why_barred(call, from));
  }
  Answer answer = fault.empty() ? to(call, carry_out(call, client->second, now_s)) : refused(call, fault);
  if (std::holds_alternative<call::Leave>(call.verb)) {
    forget(call.worker);
    return answer;
  }
  client->second.last_call = call.number;
  client->second.last_answer = answer;
  if (auto* const leased = std::get_if<answer::Leased>(&answer.what)) fill(*leased);
  return answer;
}

std::string Desk::fault_of(decltype(Call::verb) const& verb, const Client& client) const {
  if (const auto* beat = std::get_if<call::Beat>(&verb)) return fault_of(*beat);
  if (const auto* put = std::get_if<call::Put>(&verb)) return fault_of(*put, client);
  const auto* asks = std::get_if<call::LeaseGroups>(&verb);
  return asks && weights_fault_ && asks->weights_checksum != 0 ? weights_fault_(asks->version, asks->weights_checksum) : "";
}

Desk::Body Desk::body_of(GroupId group) const {
  const auto found = bodies_.find(group);
  return found == bodies_.end() ? Body{own_store_} : found->second;
}

std::optional<answer::Taken> Desk::take(StepId step, const std::string& taker) {
  if (!taken_ || !controller_.queue().has_taken(step)) {
    if (!controller_.batch_ready()) return std::nullopt;
    taken_.emplace();
    taken_->heads = controller_.take(step).groups;
    for (const data::Group& head : taken_->heads) {
      Body body = body_of(head.id);
      taken_->stores.push_back(std::move(body.store));
      taken_->measures.push_back(std::move(body.measures));
    }
  }
  taker_ = taker;
  return taken_;
}

Left Desk::commit(StepId step, PolicyVersion after) {
  Left left = controller_.commit(step, after);
  taken_.reset();
  forget_over();
  return left;
}

void Desk::forget_over() {
  const auto is_over = [&](const auto& each) { return !controller_.queue().is_outstanding(each.first); };
  std::erase_if(bodies_, is_over);
  std::erase_if(begun_, is_over);
}

std::map<WorkerId, call::Join> Desk::clients() const {
  std::map<WorkerId, call::Join> all;
  for (const auto& [worker, client] : clients_) all[worker] = client.said;
  return all;
}

std::vector<Desk::ClientReport> Desk::report_clients() {
  std::vector<ClientReport> reports;
  for (const WorkerState& worker : controller_.workers()) {
    const auto client = clients_.find(worker.id);
    if (client == clients_.end()) continue;
    Client& each = client->second;
    reports.push_back({worker, each.said.store, std::exchange(each.groups, 0), std::exchange(each.tokens, 0)});
  }
  return reports;
}

Desk::Reports Desk::take_reports(int64_t most_bytes) {
  Reports reports;
  for (auto& [id, begun] : begun_) {
    if (!begun.is_news) continue;
    const int64_t bytes = num_bytes(begun.group);
    reports.more = !reports.groups.empty() && bytes > most_bytes;
    if (reports.more) break;
    most_bytes -= bytes;
    begun.is_news = false;
    reports.groups.push_back(begun.group);
  }
  return reports;
}

void Desk::give_back() {
  controller_.give_back();
  taken_.reset();
}

void Desk::lose(std::span<const GroupId> groups, const std::string& store) {
  std::vector<GroupId> lost;
  for (const GroupId group : groups)
    if (body_of(group).store == store) lost.push_back(group);
  controller_.lose(lost);
  for (const GroupId group : lost) bodies_.erase(group);
  if (taken_ && !controller_.queue().has_taken_any()) taken_.reset();
}

// What a lease comes with: a prompt, and the tokens that were reported of it, if they have room.
void Desk::fill(answer::Leased& leased) const {
  int64_t bytes = 0;
  if (prompt_of_) {
    std::erase_if(leased.leases, [&](const Lease& lease) {  // the answer may be given again, long after
      leased.prompts.push_back(prompt_of_(lease.group));
      const bool is_gone = leased.prompts.back().ids.empty() && leased.prompts.back().text.empty();
      if (is_gone) leased.prompts.pop_back();
      return is_gone;
    });
  } else {
    leased.prompts.resize(leased.leases.size());
  }
  for (Lease& lease : leased.leases) {
    if (lease.begun == kNoLease) continue;
    const auto begun = begun_.find(lease.group);
    const bool is_here = begun != begun_.end() && begun->second.lease == lease.begun;
    if (is_here) bytes += num_bytes(begun->second.group);
    if (is_here && bytes <= kMostBegunBytes) leased.begun.push_back(begun->second.group);
    else lease.begun = kNoLease;
  }
}

std::vector<GroupId> Desk::beat(WorkerId worker, const call::Beat& beat, const std::string& store, double now_s) {
  std::vector<GroupId> over = controller_.beat(worker, beat.version, beat.leases, now_s);
  const std::set<GroupId> ended(over.begin(), over.end());
  size_t next = 0, sample = 0;
  for (const Standing& each : beat.leases) {
    if (!each.is_reported) continue;
    const data::Group& group = beat.begun[next++];
    const auto from = std::span(beat.from).subspan(sample, group.samples.size());
    sample += group.samples.size();
    if (ended.contains(group.id)) continue;
    Begun& begun = begun_[group.id];
    const int64_t before = num_tokens(begun.group);
    if (begun.lease != each.lease) begun = {each.lease, {group.id, {}, group.version, std::vector<data::Sample>(group.samples.size())}};
    bool fits = true;
    for (size_t i = 0; i < group.samples.size(); ++i) fits &= append(begun.group.samples[i], group.samples[i], from[i]);
    begun.group.version = group.version, begun.group.greedy = group.greedy;
    counters_.went_on += num_tokens(begun.group) > before;
    begun.is_news = true;
    if (!fits) begun_.erase(group.id);  // then another begins it anew
  }
  for (const GroupId group : beat.finished)
    if (const auto found = bodies_.find(group); found == bodies_.end() || found->second.store != store) over.push_back(group);
  return over;
}

AnswerWhat Desk::carry_out(const Call& call, Client& client, double now_s) {
  const auto refused = [&](const std::string& why) -> AnswerWhat {
    ++counters_.refused;
    return answer::Refused{why};
  };
  return std::visit(Cases{
      [&](const call::Join&) -> AnswerWhat { return answer::Done{}; },
      [&](const call::LeaseGroups& c) -> AnswerWhat {
        const int64_t speaks_for = client.said.device.empty() ? c.speaks_for : 1;  // a relay has none
        return answer::Leased{controller_.lease(call.worker, c.most, c.version, now_s, speaks_for), {}, {}};
      },
      [&](const call::Beat& c) -> AnswerWhat { return answer::Over{beat(call.worker, c, client.said.store, now_s)}; },
      [&](const call::Put& c) -> AnswerWhat {
        answer::Kept kept;
        const size_t width = c.heads.empty() ? 0 : c.measures.size() / c.heads.size();
        for (size_t i = 0; i < c.heads.size(); ++i) {
          kept.kept.push_back(controller_.put(call.worker, c.leases[i], head_of(c.heads[i])));
          if (!kept.kept.back()) continue;
          const auto measures = std::span(c.measures).subspan(i * width, width);
          bodies_[c.heads[i].id] = {client.said.store, {measures.begin(), measures.end()}, call.worker};
          for (const data::Sample& sample : c.heads[i].samples)
            for (const auto& [name, part] : sample.parts) client.part_names.insert(name);
          ++client.groups;
          if (is_measured_) client.tokens += num_tokens(measures);
          begun_.erase(c.heads[i].id);
        }
        return kept;
      },
      [&](const call::Take& c) -> AnswerWhat {
        if (limits_) return refused(kNoTrainer);
        if (c.version == controller_.queue().version()) return take(c.step, client.said.store).value_or(answer::Taken{});
        return refused(join_text("version ", value(c.version), ", and the queue is at ", value(controller_.queue().version())));
      },
      [&](const call::Commit& c) -> AnswerWhat {
        if (limits_) return refused(kNoTrainer);
        if (const std::string fault = fault_of(c, client); !fault.empty()) return refused(fault);
        return answer::Over{commit(c.step, c.after).all()};
      },
      [&](const call::Lose& c) -> AnswerWhat {
        if (limits_) return refused(kNoTrainer);
        if (taker_ == client.said.store) lose(c.groups, c.store);
        return answer::Done{};
      },
      [&](const call::Leave& c) -> AnswerWhat {
        if (!c.why.empty() && failures_.size() < kMaxFailures)
          failures_.push_back(join_text(client.said.store.substr(0, client.said.store.find(' ')), ": ", c.why.substr(0, kMaxFailureChars)));
        return answer::Done{};
      }}, call.verb);
}

}  // namespace tandem::queue
