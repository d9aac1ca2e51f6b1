// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/news.h"

#include <algorithm>
#include <functional>
#include <span>
#include <string_view>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/data/schema.h"

namespace tandem::queue {
namespace {

using data::Entries;

// How much of a list is known.
int64_t num_known(Entries entries, bool is_empty, const Known& known) {
  if (entries == Entries::kComputed) return known.routes;
  return entries == Entries::kTokensOrNone && is_empty ? 0 : known.tokens;
}

// Each list of a sample that grows, with how much of it is known.
void each_growing(auto& sample, const Known& known, const auto& visit) {
  data::each_list(sample, [&](const auto& column, auto& list) {
    if (column.entries != Entries::kAny) visit(list, num_known(column.entries, list.empty(), known));
  });
}

bool has(const data::Sample& sample, const Known& known) {
  bool all = known.tokens >= 0 && known.routes >= 0;
  each_growing(sample, known, [&](const auto& list, int64_t count) { all &= std::ssize(list) >= count; });
  return all;
}

size_t sum_of(const data::Sample& sample, const Known& known) {
  size_t sum = 0;
  each_growing(sample, known, [&](const auto& list, int64_t count) {
    const auto bytes = std::as_bytes(std::span(list).first(static_cast<size_t>(count)));
    sum = sum * 31 + std::hash<std::string_view>()({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  });
  return sum;
}

}  // namespace

Told told_of(const data::Group& group, LeaseNumber lease) {
  Told told{lease};
  for (const data::Sample& sample : group.samples) {
    told.known.push_back({std::ssize(sample.ids), std::ssize(sample.routes)});
    told.sums.push_back(sum_of(sample, told.known.back()));
  }
  return told;
}

std::vector<Known> cut(data::Group& group, const Told* before) {
  std::vector<Known> from(group.samples.size());
  for (size_t i = 0; i < group.samples.size() && before; ++i) {
    data::Sample& sample = group.samples[i];
    TANDEM_CHECK(before->known.size() == from.size(), "a group of ", from.size(), " samples, told of as ", before->known.size());
    if (!has(sample, before->known[i]) || sum_of(sample, before->known[i]) != before->sums[i]) continue;
    from[i] = before->known[i];
    each_growing(sample, from[i], [](auto& list, int64_t count) { list.erase(list.begin(), list.begin() + count); });
  }
  return from;
}

bool append(data::Sample& whole, data::Sample news, const Known& from) {
  bool fits = has(whole, from);
  data::each_list(whole, [&](const auto& column, const auto& list) {
    const bool is_tied = column.entries == Entries::kTokensOrNone && from.tokens > 0 && !news.ids.empty();
    fits &= !is_tied || list.empty() == (news.*column.list).empty();
  });
  if (!fits) return false;
  data::each_list(whole, [&](const auto& column, auto& list) {
    if (column.entries == Entries::kAny) return;
    auto& more = news.*column.list;
    list.resize(static_cast<size_t>(num_known(column.entries, list.empty(), from)));
    list.insert(list.end(), more.begin(), more.end());
    more = std::move(list);
  });
  whole = std::move(news);
  return true;
}

}  // namespace tandem::queue
