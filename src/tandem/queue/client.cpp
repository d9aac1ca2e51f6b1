// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/client.h"

#include <algorithm>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/rng.h"

namespace tandem::queue {
namespace {

constexpr double kResendS = 1, kMostResendS = 5;  // without an answer: the first time, and later
constexpr double kLongResendS = 10;               // of what is long on its way
constexpr double kSilentS = 5;     // after which someone is told
constexpr double kLastWordsS = 5;  // for the answer to the call that is under way, or begun, when it is to stop
constexpr double kLookS = 0.2;  // between two looks whether it is to stop

}  // namespace

Client::Client(Transport& transport, Store& store, const ClientOptions& options)
    : transport_(transport),
      store_(store),
      options_(options),
      caller_({transport.own_store(), options.dtype, options.device}, unseeded_number() >> 2, {unseeded_number(), unseeded_number()}) {}

void Client::fail(const std::string& what) const { throw PeerError(transport_.name() + ": " + what); }

// The call again and again, until its answer comes.
Client::What Client::answer_to(const Call& call) {
  const Deadline deadline = Deadline::after_s(options_.deadline_s);
  const double begin_s = now_s();
  bool has_said = false;
  std::optional<Deadline> last_words;  // once it is to stop
  const auto is_over = [&] {
    if (!last_words && options_.stop && options_.stop()) last_words = Deadline::after_s(kLastWordsS);
    return deadline.passed() || (last_words && last_words->passed());
  };
  const auto* beat = std::get_if<call::Beat>(&call.verb);
  const bool joins = std::holds_alternative<call::Join>(call.verb);
  const bool is_long = joins || (beat && !beat->begun.empty());  // it, or its answer
  double resend_s = is_long ? kLongResendS : kResendS;
  for (; !is_over(); resend_s = std::max(resend_s, std::min(2 * resend_s, kMostResendS))) {
    transport_.send(call);
    for (const Deadline resend = Deadline::after_s(resend_s); !resend.passed() && !is_over();) {
      const std::optional<Answer> answer = transport_.receive(kLookS);
      if (!answer && options_.waits && now_s() - begin_s > kSilentS && !std::exchange(has_said, true)) options_.waits(kSilentS);
      if (!answer) continue;
      std::optional<What> what = caller_.take(*answer);
      if (!what) continue;
      newest_ = answer->version;
      const auto* refused = std::get_if<answer::Refused>(&*what);
      if (refused && joins) throw UserError("rollout", refused->why, "");
      if (refused) fail(refused->why);
      return std::move(*what);
    }
  }
  caller_.abandon();
  if (last_words) throw Interrupted("stopped while " + transport_.name() + " gave no answer");
  fail(join_text("no answer within ", options_.deadline_s, " s: it is over, elsewhere, or wants another token"));
}

std::string Client::join() {
  What what = answer_to(caller_.begin_join());
  auto* joined = std::get_if<answer::Joined>(&what);
  if (!joined) return "";
  if (joined->group_size < 1) fail(join_text("groups of ", joined->group_size));
  group_size_ = joined->group_size;
  return std::move(joined->welcome);
}

Client::What Client::ask(decltype(Call::verb) verb) {
  return caller_.has_joined() ? answer_to(caller_.begin(std::move(verb))) : answer::JoinAgain{};
}

// What a client may go on with that was given up, if the controller is the same: another has nothing to give it.
Client::What Client::ask_as_before(decltype(Call::verb) verb) {
  const Incarnation before = caller_.incarnation();
  What what = ask(verb);
  if (!std::holds_alternative<answer::JoinAgain>(what)) return what;
  (void)join();
  if (caller_.has_ended()) return answer::Ended{};
  if (caller_.incarnation() != before) fail("it was started again, and knows nothing of what this client took");
  return ask(std::move(verb));
}

std::vector<SampleId> Client::samples_of(std::span<const GroupId> groups) const {
  return data::ids_of(data::bare_heads(groups, group_size_));
}

void Client::drop(std::span<const GroupId> groups) {
  store_.drop(samples_of(groups));
  for (const GroupId group : groups) kept_.erase(group);
}

std::vector<Task> Client::lease(int64_t most, PolicyVersion version, int64_t speaks_for) {
  What what = ask(call::LeaseGroups{most, version, speaks_for, weights_checksum_});
  auto* leased = std::get_if<answer::Leased>(&what);
  if (!leased) return {};
  if (leased->prompts.size() != leased->leases.size()) fail(join_text(leased->prompts.size(), " prompts of ", leased->leases.size()));
  std::vector<Task> tasks;
  size_t next = 0;
  for (size_t i = 0; i < leased->leases.size(); ++i) {
    const Lease& lease = leased->leases[i];
    if (kept_.contains(lease.group)) drop({&lease.group, 1});  // somebody could not read it
    Task& task = tasks.emplace_back(Task{lease, std::move(leased->prompts[i])});
    if (lease.begun == kNoLease) continue;
    if (next == leased->begun.size() || leased->begun[next].id != lease.group) fail(join_text("no tokens of group ", value(lease.group)));
    task.begun = std::move(leased->begun[next++].samples);
  }
  return tasks;
}

std::vector<GroupId> Client::evicted(PolicyVersion version, std::span<const Standing> leases, std::span<const GroupId> finished,
                                         std::vector<data::Group> begun) {
  call::Beat beat{version, {leases.begin(), leases.end()}, {}, std::move(begun)};
  std::map<GroupId, Told> telling;
  auto group = beat.begun.begin();
  for (const Standing& each : leases) {
    if (!each.is_reported || group == beat.begun.end()) continue;
    telling[group->id] = told_of(*group, each.lease);
    const auto before = told_.find(group->id);
    const bool goes_on = before != told_.end() && before->second.lease == each.lease;
    const std::vector<Known> from = cut(*group++, goes_on ? &before->second : nullptr);
    beat.from.insert(beat.from.end(), from.begin(), from.end());
  }
  std::vector<GroupId> over;
  for (const GroupId group : finished) (kept_.contains(group) ? beat.finished : over).push_back(group);
  const What what = ask(std::move(beat));
  if (const auto* known = std::get_if<answer::Over>(&what)) {
    over.insert(over.end(), known->groups.begin(), known->groups.end());
    for (auto& [id, told] : telling) told_[id] = std::move(told);
  } else {
    for (const Standing& each : leases) over.push_back(each.group);
    told_.clear();
  }
  for (const GroupId id : over) told_.erase(id);
  drop(over);
  return over;
}

// The bodies are here before anyone hears of them.
std::vector<bool> Client::put(std::span<const LeaseNumber> leases, std::vector<data::Group> heads, data::Fields bodies,
                                  std::vector<int64_t> measures) {
  std::vector<GroupId> groups, useless;
  for (const data::Group& head : heads) {
    groups.push_back(head.id);
    TANDEM_CHECK(!kept_.contains(head.id), "group ", value(head.id), " is put twice");
    told_.erase(head.id);
  }
  store_.put(samples_of(groups), std::move(bodies));
  const What what = ask(call::Put{{leases.begin(), leases.end()}, std::move(heads), std::move(measures)});
  const auto* answer = std::get_if<answer::Kept>(&what);
  std::vector<bool> kept = answer ? answer->kept : std::vector<bool>(groups.size(), false);
  if (kept.size() != groups.size()) fail(join_text("an answer about ", kept.size(), " of ", groups.size(), " groups"));
  for (size_t i = 0; i < groups.size(); ++i)
    if (kept[i]) kept_.insert(groups[i]);
    else useless.push_back(groups[i]);
  drop(useless);
  return kept;
}

std::optional<data::Batch> Client::take(StepId step, PolicyVersion version) {
  taken_.clear();
  What what = ask(call::Take{step, version});
  auto* taken = std::get_if<answer::Taken>(&what);
  if (!taken || taken->heads.empty()) return std::nullopt;
  if (taken->stores.size() != taken->heads.size()) fail(join_text(taken->heads.size(), " heads, ", taken->stores.size(), " stores"));
  for (size_t i = 0; i < taken->heads.size(); ++i) {
    auto store = std::ranges::find(taken_, taken->stores[i], &decltype(taken_)::value_type::first);
    if (store == taken_.end()) store = taken_.insert(store, {taken->stores[i], {}});
    store->second.push_back(taken->heads[i].id);
  }
  return data::Batch{step, version, std::move(taken->heads)};
}

bool Client::read(TensorCache& into) {
  std::vector<call::Lose> lost;  // of all stores that fail, before the batch is taken again
  for (const auto& [store, groups] : taken_) {
    const std::vector<SampleId> samples = samples_of(groups);
    const bool is_own = store == transport_.own_store();
    if (!(is_own ? store_.copy(samples, into) : transport_.read(store, samples, into))) lost.push_back({groups, store});
  }
  if (lost.empty()) return true;
  for (const auto& [store, groups] : taken_) into.drop(samples_of(groups));
  taken_.clear();
  for (call::Lose& each : lost) (void)ask_as_before(std::move(each));
  return false;
}

std::vector<GroupId> Client::commit(StepId step, PolicyVersion after) {
  taken_.clear();
  const What what = ask_as_before(call::Commit{step, after});
  const auto* over = std::get_if<answer::Over>(&what);
  if (!over) fail(join_text("no answer to the end of step ", value(step)));
  return over->groups;
}

void Client::close(const std::string& failure) { (void)ask(call::Leave{failure}); }

}  // namespace tandem::queue
