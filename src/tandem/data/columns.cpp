// SPDX-License-Identifier: Apache-2.0
#include "tandem/data/columns.h"

#include <numeric>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/data/schema.h"

namespace tandem::data {
namespace {

int64_t num_values(const Column& column) {
  return std::visit([](const auto& v) { return std::ssize(v); }, column.values);
}

template <class T, class Source>
void add_row(Fields& fields, const char* name, const Source& source) {
  Column& column = fields[name];
  if (column.lengths.empty()) column.values = std::vector<T>();
  auto& values = std::get<std::vector<T>>(column.values);
  values.insert(values.end(), std::begin(source), std::end(source));
  column.lengths.push_back(static_cast<int64_t>(std::size(source)));
}

template <class T>
void add_value(Fields& fields, const char* name, T value) {
  add_row<T>(fields, name, std::span<const T>(&value, 1));
}

// Of fields that another rank or a file holds.
template <class... Parts>
void expect(bool right, const Parts&... what) {
  if (!right) throw PeerError(join_text("packed samples: ", what...));
}

/// Walks the rows of one column.
template <class T>
class ColumnReader {
 public:
  ColumnReader(const Fields& fields, const char* name) {
    const auto found = fields.find(name);
    expect(found != fields.end(), "samples without the field ", name);
    column_ = &found->second;
    values_ = std::get_if<std::vector<T>>(&column_->values);
    expect(values_ != nullptr, "field ", name, " has another type");
  }
  std::span<const T> next() {
    expect(row_ < column_->lengths.size(), "a field has fewer rows than another");
    const int64_t length = column_->lengths[row_++];
    const std::span<const T> row(values_->data() + begin_, static_cast<size_t>(length));
    begin_ += length;
    return row;
  }
  T value() {
    const std::span<const T> row = next();
    expect(row.size() == 1, "a row of ", row.size(), " values where one is expected");
    return row[0];
  }
  std::string text() {
    const std::span<const T> row = next();
    return {row.begin(), row.end()};
  }

 private:
  const Column* column_;
  const std::vector<T>* values_;
  size_t row_ = 0;
  int64_t begin_ = 0;
};

void add_sample(Fields& fields, const Group& group, const Sample& sample, bool first) {
  static const Prompt kElsewhere;
  const auto add_list = [&](const auto& column, const auto& list) {
    add_row<typename std::decay_t<decltype(column)>::Value>(fields, column.name, list);
  };
  add_value<int64_t>(fields, "sample", value(sample.id));
  add_value<int64_t>(fields, "group", value(group.id));
  add_value<int64_t>(fields, "group_version", value(group.version));
  add_value<int64_t>(fields, "prompt_row", group.prompt.row);
  add_value<int32_t>(fields, "finish", static_cast<int32_t>(sample.finish));
  each_list(first ? group.prompt : kElsewhere, add_list);
  each_list(sample, add_list);
}

template <class Column>
void read_lists(const Fields& fields, const Column& column, std::vector<Group>& groups) {
  if (column.may_lack && !fields.contains(column.name)) return;
  ColumnReader<typename Column::Value> rows(fields, column.name);
  for (Group& group : groups)
    for (Sample& sample : group.samples) {
      const auto row = rows.next();
      if constexpr (std::is_same_v<typename Column::Owner, Sample>) (sample.*column.list).assign(row.begin(), row.end());
      else if (&sample == group.samples.data()) (group.prompt.*column.list).assign(row.begin(), row.end());
    }
}

void add_score(Fields& fields, const Sample& sample) {
  add_value<double>(fields, "score", sample.score);
  std::string names;  // each ends in a zero byte
  std::vector<double> values;
  for (const auto& [name, part] : sample.parts) {
    names += name;
    names += '\0';
    values.push_back(part);
  }
  add_row<char>(fields, "part_names", names);
  add_row<double>(fields, "part_values", values);
}

// In the row of a group's first sample: whether the greedy answer has a score, the score, and its text.
void add_greedy(Fields& fields, const Group& group, bool first) {
  std::vector<int32_t> scored;
  std::vector<double> score;
  std::string text;
  if (first && group.greedy) scored = {group.greedy->scored}, score = {group.greedy->score}, text = group.greedy->text;
  add_row<int32_t>(fields, "greedy", scored);
  add_row<double>(fields, "greedy_score", score);
  add_row<char>(fields, "greedy_text", text);
}

void read_greedy(const Fields& fields, std::vector<Group>& groups) {
  ColumnReader<int32_t> scored(fields, "greedy");
  ColumnReader<double> score(fields, "greedy_score");
  ColumnReader<char> text(fields, "greedy_text");
  for (Group& group : groups)
    for (const Sample& sample : group.samples) {
      const auto is_scored = scored.next();
      const auto number = score.next();
      std::string words = text.text();
      if (is_scored.empty()) continue;
      expect(&sample == group.samples.data() && is_scored.size() == 1 && number.size() == 1, "a greedy answer in a row of its own");
      Sample& greedy = group.greedy.emplace();
      greedy.scored = is_scored[0] != 0, greedy.score = number[0], greedy.text = std::move(words);
    }
}

}  // namespace

int64_t num_rows(const Fields& fields) {
  if (fields.empty()) return 0;
  const int64_t n = fields.begin()->second.num_rows();
  for (const auto& [name, column] : fields) {
    TANDEM_CHECK(column.num_rows() == n, "field ", name, " has ", column.num_rows(), " rows, another ", n);
    const int64_t total = std::accumulate(column.lengths.begin(), column.lengths.end(), int64_t{0});
    TANDEM_CHECK(total == num_values(column), "field ", name, " has ", num_values(column), " values for lengths of ", total);
  }
  return n;
}

Fields fields_of(std::span<const Group> groups) {
  bool scored = true, greedy = false;
  for (const Group& group : groups) {
    greedy = greedy || group.greedy;
    for (const Sample& sample : group.samples) scored = scored && sample.scored;
  }
  Fields fields;
  for (const Group& group : groups)
    for (const Sample& sample : group.samples) {
      add_sample(fields, group, sample, &sample == group.samples.data());
      if (scored) add_score(fields, sample);
      if (greedy) add_greedy(fields, group, &sample == group.samples.data());
    }
  return fields;
}

std::vector<SampleId> ids_of(std::span<const Group> groups) {
  std::vector<SampleId> ids;
  for (const Group& group : groups)
    for (const Sample& sample : group.samples) ids.push_back(sample.id);
  return ids;
}

std::vector<Group> groups_of(const Fields& fields) {
  std::vector<Group> groups;
  const int64_t n = num_rows(fields);
  if (n == 0) return groups;
  ColumnReader<int64_t> sample(fields, "sample"), group(fields, "group"), version(fields, "group_version"), row(fields, "prompt_row");
  ColumnReader<int32_t> finish(fields, "finish");
  for (int64_t i = 0; i < n; ++i) {
    const GroupId id{group.value()};
    Group read{id, {row.value()}, PolicyVersion{version.value()}, {}};
    if (groups.empty() || groups.back().id != id) groups.push_back(std::move(read));
    Sample& s = groups.back().samples.emplace_back();
    s.id = SampleId{sample.value()};
    const int32_t how = finish.value();
    expect(how >= 0 && how <= static_cast<int32_t>(FinishReason::kAborted), "a sample that finished as ", how);
    s.finish = static_cast<FinishReason>(how);
  }
  each_body_column([&](const auto& column) { read_lists(fields, column, groups); });
  if (fields.contains("greedy")) read_greedy(fields, groups);
  if (!fields.contains("score")) return groups;
  ColumnReader<double> score(fields, "score"), part_values(fields, "part_values");
  ColumnReader<char> part_names(fields, "part_names");
  for (Group& g : groups)
    for (Sample& s : g.samples) {
      s.scored = true;
      s.score = score.value();
      const std::string names = part_names.text();
      size_t begin = 0;
      for (double part : part_values.next()) {
        const size_t end = names.find('\0', begin);
        expect(end != std::string::npos, "fewer part names than part values");
        s.parts.emplace_back(names.substr(begin, end - begin), part);
        begin = end + 1;
      }
    }
  return groups;
}

void append(Fields& fields, const Fields& more) {
  expect(fields.size() == more.size(), "rows of ", more.size(), " columns behind those of ", fields.size());
  for (auto& [name, column] : fields) {
    const auto found = more.find(name);
    const bool fits = found != more.end() && found->second.values.index() == column.values.index();
    expect(fits, "rows without the field ", name, ", or of another type");
    column.lengths.insert(column.lengths.end(), found->second.lengths.begin(), found->second.lengths.end());
    std::visit([&]<class T>(std::vector<T>& values) {
      const auto& added = std::get<std::vector<T>>(found->second.values);
      values.insert(values.end(), added.begin(), added.end());
    }, column.values);
  }
}

std::vector<Group> bare_heads(std::span<const GroupId> groups, int64_t group_size) {
  std::vector<Group> heads;
  for (GroupId id : groups) {
    Group& head = heads.emplace_back(Group{id, {}, {}, {}});
    for (int64_t i = 0; i < group_size; ++i) head.samples.emplace_back().id = sample_id(id, group_size, i);
  }
  return heads;
}

}  // namespace tandem::data
