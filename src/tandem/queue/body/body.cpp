// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/body/body.h"

#include <algorithm>

#include "tandem/base/check.h"

namespace tandem::queue {

std::vector<CacheField> body_fields() {
  std::vector<CacheField> fields;
  data::each_body_column([&]<class Column>(const Column& column) {
    fields.push_back({column.name, std::vector<typename Column::Value>(), column.part});
  });
  return fields;
}

data::Group head_of(const data::Group& group) {
  data::Group head{group.id, {}, group.version, {}};
  head.prompt.row = group.prompt.row;
  for (const data::Sample& s : group.samples) {
    data::Sample& kept = head.samples.emplace_back();
    kept.id = s.id, kept.finish = s.finish, kept.scored = s.scored, kept.score = s.score, kept.parts = s.parts;
  }
  if (group.greedy) {
    data::Sample& kept = head.greedy.emplace();
    kept.scored = group.greedy->scored, kept.score = group.greedy->score;
    if (!kept.scored) kept.text = group.greedy->text;
  }
  return head;
}

TokenFacts facts_of(const data::Sample& sample) {
  TokenFacts facts;
  if (!sample.versions.empty()) {
    const auto ends = std::ranges::minmax(sample.versions);
    facts.oldest = ends.min, facts.newest = ends.max;
  }
  facts.num_trainable = sample.trainable.empty() ? std::ssize(sample.ids) : std::ranges::count(sample.trainable, 1);
  return facts;
}

std::vector<int64_t> measures_of(std::span<const data::Group> groups, const data::Fields& columns) {
  std::vector<int64_t> measures;
  const std::vector<CacheField> fields = body_fields();
  size_t row = 0;
  for (const data::Group& group : groups)
    for (const data::Sample& s : group.samples) {
      for (const CacheField& field : fields) measures.push_back(columns.at(field.name).lengths.at(row));
      const auto facts = facts_of(s).numbers();
      measures.insert(measures.end(), facts.begin(), facts.end());
      ++row;
    }
  return measures;
}

int64_t num_measures() {
  static const int64_t count = std::ssize(body_fields()) + static_cast<int64_t>(kNumFacts);
  return count;
}

int64_t padding_bytes(std::span<const std::vector<int64_t>> measures) {
  const std::vector<CacheField> fields = body_fields();
  const size_t width = fields.size() + kNumFacts;
  int64_t bytes = 0;
  for (size_t field = 0; field < fields.size(); ++field) {
    int64_t longest = 0, rows = 0, all = 0;
    for (const std::vector<int64_t>& group : measures)
      for (size_t at = field; at < group.size(); at += width, ++rows) longest = std::max(longest, group[at]), all += group[at];
    const auto of_each = static_cast<int64_t>(std::visit([](const auto& values) { return sizeof(values[0]); }, fields[field].type));
    bytes += (rows * longest - all) * of_each;
  }
  return bytes;
}

}  // namespace tandem::queue
