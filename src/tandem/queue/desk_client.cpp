// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/desk_client.h"

#include <algorithm>
#include <random>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"

namespace tandem::queue {
namespace {

constexpr double kResendS = 1;  // without an answer

int64_t random_join() {
  std::random_device device;
  return static_cast<int64_t>((static_cast<uint64_t>(device()) << 31) ^ device());
}

}  // namespace

DeskClient::DeskClient(Transport& transport, Store& store, const DeskClientOptions& options)
    : transport_(transport), store_(store), options_(options), caller_(transport.own_store(), random_join()) {}

// The call again and again, until its answer comes.
DeskClient::What DeskClient::answer_to(const Call& call, const Deadline& deadline) {
  while (!deadline.passed()) {
    transport_.send(call);
    for (const Deadline resend = Deadline::after_s(kResendS); !resend.passed();) {
      const std::optional<Answer> answer = transport_.receive(kResendS);
      if (!answer) continue;
      std::optional<What> what = caller_.take(*answer);
      if (!what) continue;
      newest_ = answer->version;
      return std::move(*what);
    }
  }
  throw PeerError(join_text(transport_.name(), ": no answer within ", options_.deadline_s, " s"));
}

DeskClient::What DeskClient::ask(decltype(Call::verb) verb) {
  const Deadline deadline = Deadline::after_s(options_.deadline_s);
  if (!caller_.has_joined()) (void)answer_to(caller_.begin_join(), deadline);
  What what = answer_to(caller_.begin(std::move(verb)), deadline);
  if (const auto* refused = std::get_if<answer::Refused>(&what)) throw PeerError(transport_.name() + ": " + refused->why);
  return what;
}

std::vector<SampleId> DeskClient::samples_of(std::span<const GroupId> groups) const {
  std::vector<SampleId> samples;
  for (const GroupId group : groups)
    for (int64_t i = 0; i < options_.group_size; ++i) samples.push_back(data::sample_id(group, options_.group_size, i));
  return samples;
}

void DeskClient::drop(std::span<const GroupId> groups) { store_.drop(samples_of(groups)); }

std::vector<Lease> DeskClient::lease(int64_t most, PolicyVersion version) {
  const What what = ask(call::LeaseGroups{most, version});
  const auto* leased = std::get_if<answer::Leased>(&what);
  return leased ? leased->leases : std::vector<Lease>();
}

std::vector<GroupId> DeskClient::evicted(PolicyVersion version, std::span<const Standing> leases, std::span<const GroupId> finished) {
  const What what = ask(call::Beat{version, {leases.begin(), leases.end()}, {finished.begin(), finished.end()}});
  std::vector<GroupId> over;
  if (const auto* known = std::get_if<answer::Over>(&what)) {
    over = known->groups;
  } else {  // nobody knows this client any more
    for (const Standing& each : leases) over.push_back(each.group);
    over.insert(over.end(), finished.begin(), finished.end());
  }
  drop(over);
  return over;
}

// The bodies are here before anyone hears of them.
std::vector<bool> DeskClient::put(std::span<const LeaseNumber> leases, std::vector<data::Group> heads, data::Fields bodies) {
  std::vector<GroupId> groups;
  for (const data::Group& head : heads) groups.push_back(head.id);
  store_.put(samples_of(groups), std::move(bodies));
  const What what = ask(call::Put{{leases.begin(), leases.end()}, std::move(heads)});
  const auto* answer = std::get_if<answer::Kept>(&what);
  std::vector<bool> kept = answer ? answer->kept : std::vector<bool>(groups.size(), false);
  std::vector<GroupId> useless;
  for (size_t i = 0; i < groups.size(); ++i)
    if (!kept[i]) useless.push_back(groups[i]);
  drop(useless);
  return kept;
}

std::optional<data::Batch> DeskClient::take(StepId step) {
  What what = ask(call::Take{step});
  auto* taken = std::get_if<answer::Taken>(&what);
  if (!taken || taken->heads.empty()) return std::nullopt;
  taken_.clear();
  for (size_t i = 0; i < taken->heads.size(); ++i) {
    auto store = std::ranges::find(taken_, taken->stores[i], &decltype(taken_)::value_type::first);
    if (store == taken_.end()) store = taken_.insert(store, {taken->stores[i], {}});
    store->second.push_back(taken->heads[i].id);
  }
  return data::Batch{step, newest_, std::move(taken->heads)};
}

std::optional<std::vector<Bodies>> DeskClient::read() {
  std::vector<Bodies> bodies;
  for (const auto& [address, groups] : taken_) {
    std::optional<data::Fields> columns = transport_.read(address, samples_of(groups));
    if (!columns) {
      (void)ask(call::Lose{groups});
      return std::nullopt;
    }
    bodies.push_back({groups, std::move(*columns)});
  }
  return bodies;
}

std::vector<GroupId> DeskClient::commit(StepId step, PolicyVersion after) {
  const What what = ask(call::Commit{step, after});
  const auto* over = std::get_if<answer::Over>(&what);
  if (!over) throw PeerError(join_text(transport_.name(), ": it was started again, and does not know of step ", value(step)));
  return over->groups;
}

void DeskClient::close() {
  if (caller_.has_joined()) (void)ask(call::Leave{});
}

}  // namespace tandem::queue
