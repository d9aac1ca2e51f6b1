// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/pipeline/split_automaton.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tandem/base/error.h"

namespace tandem::text {
namespace {

constexpr size_t kMostSteps = 20'000, kMostSets = 300, kMostStates = 4'000, kMostClasses = 200;
constexpr size_t kMostThreads = 4'000'000;  // of all states together
constexpr size_t kMostWork = 20'000'000;  // steps followed while the table is made

[[noreturn]] void too_large(const std::string& where) {
  throw UserError(where, "the pattern is too large: its automaton would have thousands of states", "expected a shorter pattern");
}

}  // namespace

class AutomatonBuilder {
 public:
  AutomatonBuilder(SplitAutomaton& automaton, const std::string& where) : to_(automaton), where_(where) {}

  void build(const PatternNode& pattern) {
    const int match = add({Step::Kind::kMatch});
    start_ = compile(pattern, match);
    make_classes();
    make_states();
    const uint16_t* from_start = &to_.table_[to_.num_classes_];
    if (std::any_of(from_start, from_start + to_.num_classes_, [](uint16_t entry) { return entry & 1; }))
      throw UserError(where_, "the pattern matches the empty text", "expected a pattern that takes at least one character");
  }

 private:
  // A step of the automaton that may be in several states at once. `next` before `other`: the first is preferred.
  struct Step {
    enum class Kind { kChars, kLook, kSplit, kMatch } kind;
    int set = -1;
    bool at_end = false;
    int next = -1, other = -1;
  };

  int add(Step step) {
    if (steps_.size() >= kMostSteps) too_large(where_);
    steps_.push_back(step);
    return static_cast<int>(steps_.size()) - 1;
  }

  int set_id(const CharSet& set) {
    for (size_t i = 0; i < sets_.size(); ++i)
      if (sets_[i].ranges() == set.ranges()) return static_cast<int>(i);
    if (sets_.size() >= kMostSets) too_large(where_);
    sets_.push_back(set);
    return static_cast<int>(sets_.size()) - 1;
  }

  void count_work() {
    if (++work_ > kMostWork) too_large(where_);
  }

  // The first step of `node` followed by the step `next`.
  int compile(const PatternNode& node, int next) {
    count_work();  // a repetition of a repetition of nothing makes no steps, and yet goes on and on
    switch (node.kind) {
      case PatternNode::Kind::kChars:
        return add({Step::Kind::kChars, set_id(node.set), false, next});
      case PatternNode::Kind::kLook:
        return add({Step::Kind::kLook, set_id(node.set), node.at_end, next});
      case PatternNode::Kind::kSequence:
        for (size_t i = node.parts.size(); i-- > 0;) next = compile(node.parts[i], next);
        return next;
      case PatternNode::Kind::kAlternatives: {
        int first = compile(node.parts.back(), next);
        for (size_t i = node.parts.size() - 1; i-- > 0;) first = split(compile(node.parts[i], next), first, false);
        return first;
      }
      case PatternNode::Kind::kRepeat:
        return repeat(node, next);
    }
    return next;
  }

  int split(int preferred, int other, bool lazy) {
    return lazy ? add({Step::Kind::kSplit, -1, false, other, preferred}) : add({Step::Kind::kSplit, -1, false, preferred, other});
  }

  int repeat(const PatternNode& node, int next) {
    const PatternNode& body = node.parts[0];
    int first = next;
    if (node.max == PatternNode::kNoMax) {
      const int loop = add({Step::Kind::kSplit});
      const int inner = compile(body, loop);
      Step& step = steps_[static_cast<size_t>(loop)];
      step.next = node.lazy ? next : inner;
      step.other = node.lazy ? inner : next;
      first = loop;
    } else {
      for (int i = node.min; i < node.max; ++i) first = split(compile(body, first), next, node.lazy);
    }
    for (int i = 0; i < node.min; ++i) first = compile(body, first);
    return first;
  }

  // Code points that no set tells apart are one class.
  void make_classes() {
    std::vector<char32_t> borders = {0, CharSet::kLast + 1};
    for (const CharSet& set : sets_)
      for (const auto& [first, last] : set.ranges()) borders.insert(borders.end(), {first, last + 1});
    std::sort(borders.begin(), borders.end());
    borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    std::map<std::vector<bool>, uint8_t> ids;
    std::vector<uint8_t> all(CharSet::kLast + 1);
    for (size_t i = 0; i + 1 < borders.size(); ++i) {
      std::vector<bool> member(sets_.size());
      for (size_t s = 0; s < sets_.size(); ++s) member[s] = sets_[s].contains(borders[i]);
      const auto [found, fresh] = ids.emplace(member, static_cast<uint8_t>(ids.size()));
      if (fresh) members_.push_back(member);
      if (ids.size() > kMostClasses) too_large(where_);
      std::fill(all.begin() + borders[i], all.begin() + borders[i + 1], found->second);
    }
    std::copy_n(all.begin(), 128, to_.ascii_classes_.begin());
    to_.num_classes_ = members_.size() + 1;
    share_blocks(all);
  }

  void share_blocks(const std::vector<uint8_t>& all) {
    std::map<std::vector<uint8_t>, uint16_t> known;
    for (size_t begin = 0; begin < all.size(); begin += 256) {
      const std::vector<uint8_t> block(all.begin() + static_cast<ptrdiff_t>(begin), all.begin() + static_cast<ptrdiff_t>(begin + 256));
      const auto [found, fresh] = known.emplace(block, static_cast<uint16_t>(known.size()));
      if (fresh) to_.classes_.insert(to_.classes_.end(), block.begin(), block.end());
      to_.blocks_.push_back(found->second);
    }
  }

  void make_states() {
    visited_.assign(steps_.size(), 0);
    listed_.assign(steps_.size(), 0);
    states_[{}] = 0;
    states_[{start_}] = 1;
    std::vector<std::vector<int>> order = {{}, {start_}};
    for (size_t state = 0; state < order.size(); ++state) {
      const std::vector<int> threads = order[state];
      for (size_t c = 0; c < to_.num_classes_; ++c) {
        const auto [next, matched] = step(threads, c);
        const auto [found, fresh] = states_.emplace(next, static_cast<uint16_t>(states_.size()));
        if (fresh) order.push_back(next);
        if (fresh && (num_threads_ += next.size()) > kMostThreads) too_large(where_);
        if (states_.size() > kMostStates) too_large(where_);
        to_.table_.push_back(static_cast<uint16_t>(found->second * 2 + (matched ? 1 : 0)));
      }
    }
  }

  // Threads in order of preference, before and after one character; whether one of them ends before it. What is less
  // preferred than that end is dropped.
  std::pair<std::vector<int>, bool> step(const std::vector<int>& threads, size_t char_class) {
    const bool at_end = char_class == members_.size();
    std::vector<int> next, stack(threads.rbegin(), threads.rend());
    ++round_;
    while (!stack.empty()) {
      const int id = stack.back();
      stack.pop_back();
      if (visited_[static_cast<size_t>(id)] == round_) continue;
      visited_[static_cast<size_t>(id)] = round_;
      count_work();
      const Step& step = steps_[static_cast<size_t>(id)];
      if (step.kind == Step::Kind::kMatch) return {next, true};
      if (step.kind == Step::Kind::kSplit) {
        stack.push_back(step.other);
        stack.push_back(step.next);
        continue;
      }
      const bool fits = at_end ? step.at_end : members_[char_class][static_cast<size_t>(step.set)];
      if (!fits) continue;
      if (step.kind == Step::Kind::kLook)
        stack.push_back(step.next);
      else if (std::exchange(listed_[static_cast<size_t>(step.next)], round_) != round_)
        next.push_back(step.next);
    }
    return {next, false};
  }

  SplitAutomaton& to_;
  const std::string& where_;
  int start_ = -1;
  std::vector<Step> steps_;
  std::vector<CharSet> sets_;
  std::vector<std::vector<bool>> members_;  // [class][set]
  std::map<std::vector<int>, uint16_t> states_;
  std::vector<uint32_t> visited_, listed_;  // the last round in which a step was followed; in which it was found to come next
  size_t num_threads_ = 0;
  uint32_t round_ = 0;
  size_t work_ = 0;
};

SplitAutomaton::SplitAutomaton(const PatternNode& pattern, const std::string& where) { AutomatonBuilder(*this, where).build(pattern); }

inline uint8_t SplitAutomaton::class_at(std::string_view text, size_t at, size_t& length) const {
  const auto byte = static_cast<uint8_t>(text[at]);
  if (byte < 128) {
    length = 1;
    return ascii_classes_[byte];
  }
  const Utf8Step step = utf8_step(text.substr(at, 4));
  length = step.length;
  return classes_[static_cast<size_t>(blocks_[step.code_point >> 8]) * 256 + (step.code_point & 255)];
}

size_t SplitAutomaton::match_at(std::string_view text, size_t at) const {
  size_t end = kNoMatch;
  const uint16_t* const table = table_.data();
  size_t state = 1;
  while (true) {
    size_t length = 0;
    const size_t char_class = at < text.size() ? class_at(text, at, length) : num_classes_ - 1;
    const uint16_t entry = table[state * num_classes_ + char_class];
    if (entry & 1) end = at;
    state = entry >> 1;
    if (state == 0) return end;
    at += length;
  }
}

}  // namespace tandem::text
