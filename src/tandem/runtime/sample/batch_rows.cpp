// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/sample/batch_rows.h"

#include <algorithm>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/queue/body/store.h"

namespace tandem::runtime {
namespace {

using queue::kNumFacts, queue::kNumParts, queue::kPrompt, queue::kRecord, queue::TokenFacts;
using queue::kLogprobs, queue::kPromptIds, queue::kResponse, queue::kRoutes, queue::kTrainable, queue::kVersions;

bool has(const std::vector<int>& ranks, int rank) { return std::ranges::find(ranks, rank) != ranks.end(); }

constexpr const char* kBody = "body";  // of a head: the lengths of the body's fields, then its facts

using Facts = std::unordered_map<data::SampleId, TokenFacts>;

data::Fields heads_of(std::span<const data::Group> groups, const queue::TensorCache& cache, const Facts& facts) {
  std::vector<data::Group> heads;
  for (const data::Group& group : groups) heads.push_back(queue::head_of(group));
  data::Fields fields = data::fields_of(heads);
  std::vector<int64_t> bodies;
  for (data::SampleId id : data::ids_of(heads)) {
    const auto lengths = cache.lengths(id);
    bodies.insert(bodies.end(), lengths.begin(), lengths.end());
    for (const int64_t number : facts.at(id).numbers()) bodies.push_back(number);
  }
  const auto width = static_cast<int64_t>(cache.num_fields() + kNumFacts);
  fields[kBody] = {std::move(bodies), std::vector<int64_t>(static_cast<size_t>(data::num_rows(fields)), width)};
  return fields;
}

void put(const data::Group& group, queue::TensorCache& cache, Facts& facts) {
  const std::span<const data::Group> one(&group, 1);
  for (const data::Sample& s : group.samples) facts[s.id] = queue::facts_of(s);
  cache.put(data::ids_of(one), data::fields_of(one));
}

// Of others: the lengths of their bodies become known here.
std::vector<data::Group> read_heads(data::Fields fields, queue::TensorCache& cache, Facts& known) {
  std::vector<data::Group> heads = data::groups_of(fields);
  const auto& bodies = std::get<std::vector<int64_t>>(fields.at(kBody).values);
  const size_t num_fields = cache.num_fields(), width = num_fields + kNumFacts;
  const std::vector<data::SampleId> ids = data::ids_of(heads);
  TANDEM_CHECK(bodies.size() == ids.size() * width, "heads of ", ids.size(), " samples with ", bodies.size(), " lengths");
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto row = std::span(bodies).subspan(i * width, width);
    cache.announce(ids[i], row.first(num_fields));
    known[ids[i]] = TokenFacts::from(row.last(kNumFacts));
  }
  return heads;
}

std::vector<std::vector<int>> ranks_by_dp(const model::Layout& layout, int first) {
  std::vector<std::vector<int>> ranks(static_cast<size_t>(layout.dp));
  for (int r = 0; r < layout.world(); ++r) ranks[static_cast<size_t>(layout.dp_rank(r))].push_back(first + r);
  return ranks;
}

}  // namespace

BatchRows::BatchRows(const policy::Ranks& ranks, planner::Homes& homes, int64_t group_size)
    : ranks_(ranks),
      homes_(homes),
      group_size_(group_size),
      cache_(queue::body_fields()),
      rollout_(ranks_by_dp(ranks.rollout_layout, ranks.placement.rollout.first)),
      train_(ranks_by_dp(ranks.train_layout, ranks.placement.train.first)),
      writers_(train_.size()) {
  for (int r = 0; r < ranks.train_layout.world(); ++r)
    if (ranks.train_layout.speaks(r)) writers_[static_cast<size_t>(ranks.train_layout.dp_rank(r))] = ranks.placement.train.first + r;
  if (ranks.world.size() > 1) cache_.share_memory(ranks.world);
}

std::vector<int> BatchRows::holders(data::GroupId group, int32_t part) const {
  std::vector<int> ranks;
  if (const auto expected = expected_.find(group); expected != expected_.end()) ranks = {expected->second};
  else ranks = rollout_[static_cast<size_t>(homes_.of(group))];
  const auto add = [&](int rank) {
    if (!has(ranks, rank)) ranks.push_back(rank);
  };
  if (on_first_.contains(group)) add(0);
  if (const auto lent = lent_.find(group); lent != lent_.end() && part != kRecord)
    for (const int dp : lent->second) std::ranges::for_each(train_[static_cast<size_t>(dp)], add);
  return ranks;
}

void BatchRows::keep(data::Group& group) {
  put(group, cache_, facts_);
  for (data::Sample& s : group.samples)
    data::each_list(s, [](const auto& column, auto& list) {
      if (!column.is_graded) list.clear();
    });
}

void BatchRows::keep_everywhere(std::vector<data::Group>& groups) {
  everywhere_ = true;
  for (data::Group& group : groups) {
    put(group, cache_, facts_);
    group = queue::head_of(group);
  }
}

void BatchRows::restore(data::Group& group) {
  if (has(holders(group.id, kRecord), ranks_.world.rank())) {
    put(group, cache_, facts_);
  } else {
    queue::TensorCache whole(queue::body_fields());
    const std::span<const data::Group> one(&group, 1);
    whole.put(data::ids_of(one), data::fields_of(one));
    for (const data::Sample& s : group.samples) {
      cache_.announce(s.id, whole.lengths(s.id));
      facts_[s.id] = queue::facts_of(s);
    }
  }
  group = queue::head_of(group);
}

std::vector<data::Group> BatchRows::exchange(comm::Group& peers, std::vector<data::Group> graded, bool speaks) {
  std::erase_if(graded, [&](const data::Group& group) { return !cache_.knows(group.samples.front().id); });  // evicted while it was graded
  std::vector<data::Group> all;
  if (peers.size() == 1) {
    for (const data::Group& group : graded) all.push_back(queue::head_of(group));
  } else {
    std::vector<std::byte> packed;
    if (speaks && !graded.empty()) packed = data::pack(heads_of(graded, cache_, facts_));
    for (const std::vector<std::byte>& part : comm::all_gather_bytes(peers, packed)) {
      if (part.empty()) continue;
      for (data::Group& head : read_heads(data::unpack(part), cache_, facts_)) all.push_back(std::move(head));
    }
  }
  std::ranges::sort(all, {}, &data::Group::id);
  return all;
}

int64_t BatchRows::move(std::span<const data::Group> heads, const std::function<std::vector<int>(size_t, int32_t)>& wanters) {
  std::vector<std::vector<int>> holding, wanting;  // by group and part; by row and part
  for (const data::Group& head : heads)
    for (int32_t part = 0; part < kNumParts; ++part) holding.push_back(holders(head.id, part));
  const size_t num_rows = data::ids_of(heads).size();
  for (size_t row = 0; row < num_rows; ++row)
    for (int32_t part = 0; part < kNumParts; ++part) wanting.push_back(wanters(row, part));
  std::vector<data::RowPlace> places;
  for (size_t g = 0; g < heads.size(); ++g)
    for (const data::Sample& s : heads[g].samples)
      for (int32_t part = 0; part < kNumParts; ++part)
        places.push_back({{s.id, part}, cache_.num_bytes({s.id, part}), holding[g * kNumParts + static_cast<size_t>(part)],
                          wanting[places.size()]});
  const std::vector<data::RowMove> plan = data::plan_rows(places);
  cache_.move(ranks_.world, plan);
  int64_t bytes = 0;
  for (const data::RowMove& m : plan) bytes += cache_.num_bytes(m.row);
  return bytes;
}

void BatchRows::lend(std::span<const data::Group> heads, std::span<const int> borrowers) {
  std::vector<int> to;  // by row
  for (size_t g = 0; g < heads.size(); ++g) to.insert(to.end(), heads[g].samples.size(), borrowers[g]);
  lent_bytes_ += move(heads, [&](size_t row, int32_t part) {
    return part == kRecord ? std::vector<int>() : train_[static_cast<size_t>(to[row])];
  });
  for (size_t g = 0; g < heads.size(); ++g) lent_[heads[g].id].insert(borrowers[g]);
}

int64_t BatchRows::deal(std::span<const data::Group> heads, std::span<const int> owners, bool with_records) {
  if (everywhere_ || ranks_.world.size() == 1) return 0;
  const int64_t lent_bytes = std::exchange(lent_bytes_, 0);
  std::vector<size_t> first_row, group_of_row;  // by group; by row
  for (size_t g = 0; g < heads.size(); ++g) {
    first_row.push_back(group_of_row.size());
    group_of_row.insert(group_of_row.end(), heads[g].samples.size(), g);
  }
  first_row.push_back(group_of_row.size());
  TANDEM_CHECK(owners.size() == group_of_row.size(), owners.size(), " owners of ", group_of_row.size(), " rows");
  return lent_bytes + move(heads, [&](size_t row, int32_t part) {
    std::set<int> ranks;
    const size_t group = group_of_row[row];
    // A prompt stands in the row of its group's first sample and is wanted by the owners of all.
    const bool shared = part == kPrompt && row == first_row[group];
    const size_t end = shared ? first_row[group + 1] : row + 1;
    for (size_t i = row; i < end; ++i) {
      const auto owner = static_cast<size_t>(owners[i]);
      if (part != kRecord || with_records) ranks.insert(train_[owner].begin(), train_[owner].end());
      else ranks.insert(writers_[owner]);
    }
    return std::vector<int>(ranks.begin(), ranks.end());
  });
}

void BatchRows::take_back(std::span<const data::Group> heads) {
  for (const data::Group& head : heads) {
    lent_.erase(head.id);
    if (has(holders(head.id, kRecord), ranks_.world.rank())) continue;  // what it borrowed does not count
    for (const data::Sample& s : head.samples) {
      const auto known = cache_.lengths(s.id);
      const std::vector<int64_t> lengths(known.begin(), known.end());
      cache_.drop({&s.id, 1});
      cache_.announce(s.id, lengths);
    }
  }
}

void BatchRows::gather(std::span<const data::GroupId> groups) {
  if (ranks_.world.size() == 1) return;
  move(data::bare_heads(groups, group_size_), [](size_t, int32_t) { return std::vector<int>{0}; });
  on_first_.insert(groups.begin(), groups.end());
}

std::vector<data::Group> BatchRows::complete(std::vector<data::Group> heads) const {
  for (data::Group& group : heads) queue::add_body(group, cache_);
  return heads;
}

void BatchRows::expect(const data::Group& head, std::span<const int64_t> measures, int rank) {
  const size_t num_fields = cache_.num_fields(), width = num_fields + kNumFacts;
  TANDEM_CHECK(measures.size() == head.samples.size() * width, measures.size(), " measures of ", head.samples.size(), " samples");
  for (const data::Sample& s : head.samples) {
    cache_.announce(s.id, measures.first(num_fields));
    facts_[s.id] = TokenFacts::from(measures.subspan(num_fields, kNumFacts));
    measures = measures.subspan(width);
  }
  expected_[head.id] = rank;
}

std::vector<data::Group> BatchRows::complete_rows(std::span<const data::Group> heads, std::span<const size_t> rows) const {
  std::vector<data::Group> some;
  size_t row = 0;
  for (const data::Group& head : heads) {
    data::Group group{head.id, head.prompt, head.version, {}};
    for (const data::Sample& sample : head.samples)
      if (std::ranges::binary_search(rows, row++)) group.samples.push_back(sample);
    if (!group.samples.empty()) some.push_back(std::move(group));
  }
  return complete(std::move(some));
}

int64_t BatchRows::num_prompt_tokens(const data::Group& head) const { return cache_.lengths(head.samples.front().id)[kPromptIds]; }
int64_t BatchRows::num_tokens(data::SampleId sample) const { return cache_.lengths(sample)[kResponse]; }

std::span<const int32_t> BatchRows::prompt(const data::Group& head) const {
  return cache_.read<int32_t>(head.samples.front().id, kPromptIds);
}
BatchRows::Body BatchRows::body(data::SampleId sample) const {
  Body body;
  body.response = cache_.read<int32_t>(sample, kResponse);
  body.logprobs = cache_.read<float>(sample, kLogprobs);
  body.trainable = cache_.read<uint8_t>(sample, kTrainable);
  body.routes = cache_.read<int16_t>(sample, kRoutes);
  if (!cache_.holds({sample, kRecord})) return body;
  body.versions = cache_.read<int64_t>(sample, kVersions);
  const auto letters = cache_.read<char>(sample, cache_.field("text"));
  body.text = {letters.data(), letters.size()};
  return body;
}

void BatchRows::drop(std::span<const data::Group> heads) {
  for (const data::Group& head : heads) on_first_.erase(head.id), expected_.erase(head.id), lent_.erase(head.id), homes_.forget(head.id);
  const std::vector<data::SampleId> ids = data::ids_of(heads);
  for (data::SampleId id : ids) facts_.erase(id);
  cache_.drop(ids);
}

}  // namespace tandem::runtime
