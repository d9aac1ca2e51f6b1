// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/group/group_assembly.h"

#include <algorithm>
#include <utility>

#include "tandem/base/check.h"

namespace tandem::rollout {
namespace {

Request request_of(const GroupRequest& group, int64_t index) {
  Request request;
  request.prompt = group.group.prompt.ids;
  request.row = group.group.prompt.row;
  request.sample = data::SampleId{group.first_sample + index};
  request.sampling = group.sampling;
  if (!group.max_new_tokens.empty()) request.sampling.max_new_tokens = group.max_new_tokens[static_cast<size_t>(index)];
  request.seed = group.seed;
  request.stop_ids = group.stop_ids;
  request.make_listener = group.make_listener;
  request.record_routes = group.record_routes;
  return request;
}

// It draws nothing, so its random stream is nobody's. Routes are recorded where its group's are, for they may run in one row.
Request greedy_request_of(const GroupRequest& group) {
  Request request = request_of(group, 0);
  request.sample = data::SampleId{-1};
  request.sampling = group.sampling;
  request.sampling.temperature = 0;
  return request;
}

}  // namespace

void GroupAssembly::admit(GroupRequest request) {
  const std::vector<int64_t>& each = request.max_new_tokens;
  TANDEM_CHECK(each.empty() || std::ssize(each) == request.num_samples, each.size(), " lengths for ", request.num_samples, " samples");
  Request longest = request_of(request, 0);
  if (!each.empty()) longest.sampling.max_new_tokens = *std::ranges::max_element(each);
  if (request.with_greedy) longest.sampling.max_new_tokens = std::max(longest.sampling.max_new_tokens, request.sampling.max_new_tokens);
  engine_.check(longest);  // all of the group or nothing
  TANDEM_CHECK(!groups_.contains(request.group.id), "group ", value(request.group.id), " is under way");
  Open open;
  std::vector<data::Sample> begun = std::exchange(request.group.samples, {});
  TANDEM_CHECK(begun.empty() || std::ssize(begun) == request.num_samples, begun.size(), " samples begun of ", request.num_samples);
  open.group.samples.resize(static_cast<size_t>(request.num_samples));
  for (int64_t i = 0; i < request.num_samples; ++i) {
    const auto at = static_cast<size_t>(i);
    if (!begun.empty() && begun[at].finish != data::FinishReason::kAborted) {
      open.group.samples[at] = std::move(begun[at]);
      continue;
    }
    Request one = request_of(request, i);
    if (!begun.empty()) one.begun = std::move(begun[at]);
    const SequenceId id = engine_.submit(std::move(one));
    open.samples.emplace(id, i);
    group_of_.emplace(id, request.group.id);
  }
  if (request.with_greedy) {
    open.greedy = engine_.submit(greedy_request_of(request));
    group_of_.emplace(*open.greedy, request.group.id);
  }
  std::vector<data::Sample> samples = std::exchange(open.group.samples, {});
  open.group = std::move(request.group);
  open.group.samples = std::move(samples);
  groups_.emplace(open.group.id, std::move(open));
}

std::vector<data::Group> GroupAssembly::finished() {
  std::vector<data::Group> done;
  for (Completion& completion : engine_.completed()) {
    const auto id = group_of_.extract(completion.sequence);
    TANDEM_CHECK(!id.empty(), "sequence ", value(completion.sequence), " belongs to no group");
    const auto open = groups_.find(id.mapped());
    auto& [group, samples, greedy] = open->second;
    if (greedy == completion.sequence) {
      group.greedy = std::move(completion.sample);
      greedy.reset();
    } else {
      group.samples[samples.extract(completion.sequence).mapped()] = std::move(completion.sample);
    }
    if (!samples.empty() || greedy) continue;
    group.version = data::PolicyVersion{group.samples.front().versions.front()};
    for (const data::Sample& sample : group.samples) group.version = std::min(group.version, data::PolicyVersion{sample.versions.front()});
    done.push_back(std::move(group));
    groups_.erase(open);
  }
  return done;
}

void GroupAssembly::cancel(data::GroupId group) {
  const auto open = groups_.find(group);
  if (open == groups_.end()) return;
  const auto forget = [&](SequenceId id) {
    engine_.cancel(id);
    group_of_.erase(id);
  };
  for (const auto& [id, place] : open->second.samples) forget(id);
  if (open->second.greedy) forget(*open->second.greedy);
  groups_.erase(open);
}

std::optional<data::Group> GroupAssembly::take_out(data::GroupId id) {
  std::optional<data::Group> group = so_far(id);
  if (group) cancel(id);
  return group;
}

std::optional<data::Group> GroupAssembly::so_far(data::GroupId id) const {
  const auto open = groups_.find(id);
  if (open == groups_.end() || open->second.greedy || open->second.group.greedy) return std::nullopt;
  data::Group group = open->second.group;
  for (const auto& [sequence, place] : open->second.samples) {
    group.samples[place] = engine_.so_far(sequence);
    group.samples[place].finish = data::FinishReason::kAborted;
  }
  return group;
}

std::map<data::GroupId, int64_t> GroupAssembly::num_tokens() const {
  std::map<data::GroupId, int64_t> tokens;
  for (const auto& [id, open] : groups_)
    for (const auto& [sequence, place] : open.samples) tokens[id] += engine_.progress(sequence).tokens;
  return tokens;
}

std::vector<data::GroupId> GroupAssembly::unfinished() const {
  std::vector<data::GroupId> ids;
  for (const auto& [id, open] : groups_) ids.push_back(id);
  return ids;
}

std::vector<data::GroupId> GroupAssembly::without_token() const {
  std::vector<data::GroupId> ids;
  for (const auto& [id, open] : groups_) {
    if (open.samples.size() < open.group.samples.size()) continue;  // one has ended
    const auto has_token = [&](const auto& sample) { return engine_.progress(sample.first).keeps_token; };
    if (std::ranges::none_of(open.samples, has_token)) ids.push_back(id);
  }
  return ids;
}

}  // namespace tandem::rollout
