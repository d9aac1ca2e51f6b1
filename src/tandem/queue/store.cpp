// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/store.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/strings.h"

namespace tandem::queue {
namespace {

bool is_whole(const TensorCache& rows, SampleId id) {
  if (!rows.knows(id)) return false;
  for (int32_t part = 0; part < rows.num_parts(); ++part)
    if (!rows.holds({id, part})) return false;
  return true;
}

}  // namespace

std::vector<CacheField> body_fields() {
  const std::vector<int32_t> ids;
  const std::vector<char> text;
  return {{"prompt_ids", ids, kPrompt},
          {"response_ids", ids, kTraining},
          {"logprobs", std::vector<float>(), kTraining},
          {"routes", std::vector<int16_t>(), kTraining},
          {"versions", std::vector<int64_t>(), kRecord},
          {"kept_mass", std::vector<float>(), kRecord},
          {"text", text, kRecord},
          {"prompt_text", text, kRecord},
          {"answer", text, kRecord},
          {"data_source", text, kRecord}};
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

std::vector<int64_t> measures_of(std::span<const data::Group> groups, const data::Fields& columns) {
  std::vector<int64_t> measures;
  const std::vector<CacheField> fields = body_fields();
  size_t row = 0;
  for (const data::Group& group : groups)
    for (const data::Sample& s : group.samples) {
      for (const CacheField& field : fields) measures.push_back(columns.at(field.name).lengths.at(row));
      const auto ends = std::ranges::minmax_element(s.versions);
      const bool any = !s.versions.empty();
      measures.insert(measures.end(), {any ? *ends.min : 0, any ? *ends.max : 0});
      ++row;
    }
  return measures;
}

int64_t num_measures() {
  static const int64_t count = std::ssize(body_fields()) + static_cast<int64_t>(kNumVersions);
  return count;
}

std::string fault_of_measures(std::span<const int64_t> of_group, PolicyVersion start, PolicyVersion newest) {
  constexpr int64_t kMost = int64_t{1} << 40;
  const auto width = static_cast<size_t>(num_measures());
  for (size_t at = 0; at + width <= of_group.size(); at += width) {
    const auto sample = of_group.subspan(at, width);
    const auto lengths = sample.first(width - kNumVersions);
    const auto is_length = [](int64_t length) { return length >= 0 && length <= kMost; };
    if (!std::ranges::all_of(lengths, is_length)) return "has a length that none has";
    const int64_t tokens = lengths[kResponse], kept = lengths[kKeptMass];
    if (tokens == 0) return "has a response without a token";
    if (at == 0 && lengths[kPromptIds] == 0) return "has no prompt";
    if (lengths[kLogprobs] != tokens || lengths[kVersions] != tokens || (kept != 0 && kept != tokens))
      return join_text("has ", lengths[kLogprobs], " log-probabilities and ", lengths[kVersions], " versions of ", tokens, " tokens");
    const int64_t oldest = sample[width - 2], latest = sample[width - 1];
    if (oldest < value(start) || oldest > latest || latest > value(newest))
      return join_text("has tokens of versions ", oldest, " to ", latest, ", and began with ", value(start));
  }
  return "";
}

int64_t padding_bytes(std::span<const std::vector<int64_t>> measures) {
  const std::vector<CacheField> fields = body_fields();
  const size_t width = fields.size() + kNumVersions;
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

void add_body(data::Group& head, const TensorCache& bodies) {
  const auto list = [&]<class T>(std::vector<T>& to, data::SampleId id, const char* name) {
    const auto from = bodies.read<T>(id, bodies.field(name));
    to.assign(from.begin(), from.end());
  };
  const auto text = [&](std::string& to, data::SampleId id, const char* name) {
    const auto from = bodies.read<char>(id, bodies.field(name));
    to.assign(from.begin(), from.end());
  };
  const data::SampleId first = head.samples.front().id;
  list(head.prompt.ids, first, "prompt_ids");
  text(head.prompt.text, first, "prompt_text");
  text(head.prompt.answer, first, "answer");
  text(head.prompt.data_source, first, "data_source");
  for (data::Sample& s : head.samples) {
    list(s.ids, s.id, "response_ids");
    list(s.logprobs, s.id, "logprobs");
    list(s.kept_mass, s.id, "kept_mass");
    list(s.versions, s.id, "versions");
    list(s.routes, s.id, "routes");
    text(s.text, s.id, "text");
  }
}

void Store::put(std::span<const SampleId> samples, data::Fields columns) {
  std::lock_guard lock(mutex_);
  rows_.drop(samples);
  rows_.put(samples, std::move(columns));
}

void Store::copy_in(std::span<const SampleId> samples, const TensorCache& from) {
  std::vector<int64_t> lengths;
  for (const SampleId id : samples) lengths.insert(lengths.end(), from.lengths(id).begin(), from.lengths(id).end());
  const auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(from.packed_bytes(samples)));
  from.pack(samples, *bytes);
  std::lock_guard lock(mutex_);
  const bool fits = rows_.adopt(samples, lengths, *bytes, bytes);
  TANDEM_CHECK(fits, "rows of another cache");
}

void Store::drop(std::span<const SampleId> samples) {
  std::lock_guard lock(mutex_);
  rows_.drop(samples);
}

int64_t Store::num_held() const {
  std::lock_guard lock(mutex_);
  return rows_.num_held();
}

int64_t Store::read(std::span<const SampleId> samples, int64_t most_bytes, const Room& room) const {
  std::lock_guard lock(mutex_);
  RowsHead head;
  for (int64_t bytes = 0; head.num_rows < std::ssize(samples); ++head.num_rows) {
    const SampleId id = samples[static_cast<size_t>(head.num_rows)];
    if (!is_whole(rows_, id)) return 0;
    for (int32_t part = 0; part < rows_.num_parts(); ++part) bytes += rows_.num_bytes({id, part});
    if (bytes > most_bytes && head.num_rows > 0) break;
    const auto lengths = rows_.lengths(id);
    head.lengths.insert(head.lengths.end(), lengths.begin(), lengths.end());
  }
  samples = samples.first(static_cast<size_t>(head.num_rows));
  head.num_bytes = rows_.packed_bytes(samples);
  rows_.pack(samples, room(head));
  return head.num_rows;
}

bool Store::copy(std::span<const SampleId> samples, TensorCache& to) const {
  std::vector<int64_t> lengths;
  auto bytes = std::make_shared<std::vector<std::byte>>();
  const int64_t rows = read(samples, std::numeric_limits<int64_t>::max(), [&](const RowsHead& head) {
    lengths = head.lengths;
    bytes->resize(static_cast<size_t>(head.num_bytes));
    return std::span(*bytes);
  });
  if (rows < std::ssize(samples)) return false;
  const std::span<const std::byte> packed(*bytes);
  return to.adopt(samples, lengths, packed, std::move(bytes));
}

}  // namespace tandem::queue
