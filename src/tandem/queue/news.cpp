// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/news.h"

#include <algorithm>
#include <functional>
#include <span>
#include <string_view>
#include <utility>

#include "tandem/base/check.h"

namespace tandem::queue {
namespace {

// Each list of a sample that grows, with how much of it is known. kept_mass is empty where nothing is filtered.
void each_list(auto& sample, const Known& known, const auto& visit) {
  visit(sample.ids, known.tokens);
  visit(sample.logprobs, known.tokens);
  visit(sample.versions, known.tokens);
  if (!sample.kept_mass.empty()) visit(sample.kept_mass, known.tokens);
  visit(sample.routes, known.routes);
}

bool has(const data::Sample& sample, const Known& known) {
  bool all = known.tokens >= 0 && known.routes >= 0;
  each_list(sample, known, [&](const auto& list, int64_t count) { all &= std::ssize(list) >= count; });
  return all;
}

size_t sum_of(const data::Sample& sample, const Known& known) {
  size_t sum = 0;
  each_list(sample, known, [&](const auto& list, int64_t count) {
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
    each_list(sample, from[i], [](auto& list, int64_t count) { list.erase(list.begin(), list.begin() + count); });
  }
  return from;
}

bool append(data::Sample& whole, data::Sample news, const Known& from) {
  if (!has(whole, from) || (from.tokens > 0 && whole.kept_mass.empty() != news.kept_mass.empty() && !news.ids.empty())) return false;
  const auto join = [](auto& list, auto& more, int64_t count) {
    list.resize(static_cast<size_t>(count));
    list.insert(list.end(), more.begin(), more.end());
    more = std::move(list);
  };
  join(whole.ids, news.ids, from.tokens);
  join(whole.logprobs, news.logprobs, from.tokens);
  join(whole.versions, news.versions, from.tokens);
  join(whole.kept_mass, news.kept_mass, whole.kept_mass.empty() ? 0 : from.tokens);
  join(whole.routes, news.routes, from.routes);
  whole = std::move(news);
  return true;
}

}  // namespace tandem::queue
