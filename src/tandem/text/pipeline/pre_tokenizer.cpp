// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/pipeline/pre_tokenizer.h"

namespace tandem::text {
namespace {

using StepKind = PreTokenizeStep::Kind;
using Behavior = PreTokenizeStep::Behavior;

}  // namespace

PreTokenizer::PreTokenizer(std::vector<PreTokenizeStep> steps) : steps_(std::move(steps)) {
  for (const PreTokenizeStep& step : steps_)
    patterns_.push_back(step.kind == StepKind::kPrefix ? std::nullopt : std::optional(compile(step.pattern)));
}

void PreTokenizer::run(size_t step, std::string_view text, bool first, const Take& take) const {
  if (text.empty()) return;
  if (step == steps_.size()) return take(text);
  const PreTokenizeStep& s = steps_[step];
  if (s.kind == StepKind::kSplit) {
    const bool apart = s.behavior == Behavior::kIsolated || s.behavior == Behavior::kRemoved;
    return apart ? split_apart(step, text, first, take) : split_merging(step, text, first, take);
  }
  std::string changed;
  if (s.kind == StepKind::kPrefix) {
    if ((s.only_first && !first) || text.starts_with(s.content)) return run(step + 1, text, first, take);
    changed.append(s.content).append(text);
  } else {
    size_t begin = 0;
    patterns_[step]->each_match(text, [&](size_t from, size_t to) {
      changed.append(text.substr(begin, from - begin)).append(s.content);
      begin = to;
    });
    changed.append(text.substr(begin));
  }
  run(step + 1, changed, first, take);
}

void PreTokenizer::split_apart(size_t step, std::string_view text, bool first, const Take& take) const {
  const PreTokenizeStep& s = steps_[step];
  const bool all = s.behavior == Behavior::kIsolated, gaps = all || !s.invert, matches = all || s.invert;
  const bool last_step = step + 1 == steps_.size();
  auto give = [&](size_t from, size_t to) {
    if (to == from) return;
    if (last_step)
      take(text.substr(from, to - from));
    else
      run(step + 1, text.substr(from, to - from), first && from == 0, take);
  };
  size_t begin = 0;
  patterns_[step]->each_match(text, [&](size_t from, size_t to) {
    if (gaps) give(begin, from);
    if (matches) give(from, to);
    begin = to;
  });
  if (gaps) give(begin, text.size());
}

void PreTokenizer::split_merging(size_t step, std::string_view text, bool first, const Take& take) const {
  const PreTokenizeStep& s = steps_[step];
  std::vector<Part> parts;
  size_t begin = 0;
  patterns_[step]->each_match(text, [&](size_t from, size_t to) {
    if (from > begin) parts.push_back({begin, from, s.invert});
    parts.push_back({from, to, !s.invert});
    begin = to;
  });
  if (begin < text.size()) parts.push_back({begin, text.size(), s.invert});
  // Whether parts i and i + 1 are one piece.
  auto joined = [&](size_t i) {
    const bool here = parts[i].match, next = parts[i + 1].match;
    if (s.behavior == Behavior::kContiguous) return here == next;
    return s.behavior == Behavior::kMergedWithPrevious ? !here && next : here && !next;
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t from = parts[i].begin;
    while (i + 1 < parts.size() && joined(i)) ++i;
    run(step + 1, text.substr(from, parts[i].end - from), first && from == 0, take);
  }
}

}  // namespace tandem::text
