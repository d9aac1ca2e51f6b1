// SPDX-License-Identifier: Apache-2.0
#include "tandem/data/source.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/rng.h"

namespace tandem::data {
namespace {

constexpr int kRounds = 6;

}  // namespace

bool is_generated(std::string_view path) { return path == "synthetic" || path == "word_problems"; }

std::unique_ptr<PromptSource> open_source(const std::string& path, const Options& options, Split split) {
  const bool train = split == Split::kTrain;
  if (path.empty())
    throw UserError(train ? "data.train" : "data.eval", "is empty",
                    "expected a .jsonl, .json or .parquet file, `word_problems` or `synthetic`");
  if (path == "synthetic") return open_additions(options, split);
  if (path == "word_problems") return open_word_problems(options, split);
  return open_records(path, options, train ? options.max_rows : options.eval_max_rows);
}

// What stands before the first `=` is a name where it could be one: folders of a path may hold a `=`.
std::vector<EvalSet> eval_sets(const Options& options) {
  const auto is_word = [](std::string_view text) {
    return !text.empty() && std::ranges::all_of(text, [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-' || c == '.'; });
  };
  std::vector<EvalSet> sets;
  for (const std::string& entry : options.eval) {
    const size_t equal = entry.find('=');
    const bool named = equal != std::string::npos && entry.substr(0, equal).find('/') == std::string::npos;
    sets.push_back(named ? EvalSet{entry.substr(0, equal), entry.substr(equal + 1)} : EvalSet{"", entry});
    const EvalSet& set = sets.back();
    if (named && !is_word(set.name))
      throw UserError("data.eval", "`" + set.name + "` is no name of a set", "letters, digits, `_`, `-` and `.`, as in gsm8k=test.jsonl");
    if (options.eval.size() > 1 && !named)
      throw UserError("data.eval", "`" + entry + "` is one of several sets, and has no name", "NAME=FILE, such as gsm8k=test.jsonl");
    if (std::ranges::count(sets, set.name, &EvalSet::name) > 1)
      throw UserError("data.eval", "two sets have the name `" + set.name + "`", "a name for each, for it stands in the metrics");
  }
  return sets;
}

std::vector<MixPart> mix_of(const Options& options) {
  if (options.mix.empty()) return {{options.train, 1.0}};
  std::vector<MixPart> parts;
  for (const std::string& entry : options.mix) {
    const size_t equal = entry.rfind('=');
    MixPart part{entry.substr(0, equal), 0};
    const char* begin = entry.data() + std::min(equal, entry.size() - 1) + 1;
    const auto [end, error] = std::from_chars(begin, entry.data() + entry.size(), part.weight);
    const bool right = equal != std::string::npos && equal > 0 && error == std::errc() && end == entry.data() + entry.size();
    if (!right || !(part.weight > 0) || part.weight > 1e9)
      throw UserError("data.mix", "`" + entry + "` is no file with a weight",
                      "expected FILE=WEIGHT with a weight above 0, such as a.jsonl=2");
    parts.push_back(std::move(part));
  }
  return parts;
}

MixOrder::MixOrder(std::vector<double> weights) : shares_(std::move(weights)) {
  TANDEM_CHECK(!shares_.empty(), "a mix of nothing");
  double behind = 0;
  for (size_t i = shares_.size(); i-- > 0;) {
    behind += shares_[i];
    shares_[i] /= behind;
  }
}

// The first part takes a position where the floor of its share of all positions so far rises. The others share the rest alike.
MixOrder::Draw MixOrder::at(int64_t position) const {
  for (size_t part = 0; part + 1 < shares_.size(); ++part) {
    const auto taken = [&](int64_t n) { return static_cast<int64_t>(std::floor(static_cast<double>(n) * shares_[part])); };
    const int64_t before = taken(position);
    if (taken(position + 1) > before) return {part, before};
    position -= before;
  }
  return {shares_.size() - 1, position};
}

DataOrder::DataOrder(uint64_t seed, int64_t size, bool shuffle) : seed_(seed), size_(size), shuffle_(shuffle), half_bits_(1) {
  TANDEM_CHECK(size > 0, "an order of no rows");
  while ((int64_t{1} << (2 * half_bits_)) < size) ++half_bits_;
}

// A Feistel network permutes [0, 4^half_bits); walking on while outside [0, size) makes it a permutation of the rows.
// The range is less than four times the size, so the walk is short.
int64_t DataOrder::row(int64_t position) const {
  TANDEM_CHECK(position >= 0, "position ", position);
  auto index = static_cast<uint64_t>(position % size_);
  if (!shuffle_) return static_cast<int64_t>(index);
  const auto round = static_cast<uint64_t>(position / size_);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  do {
    uint64_t left = index >> half_bits_, right = index & mask;
    for (uint32_t r = 0; r < kRounds; ++r) {
      const auto noise = philox4x32({static_cast<uint32_t>(right), static_cast<uint32_t>(right >> 32) ^ (r << 28),
                                     static_cast<uint32_t>(round), static_cast<uint32_t>(round >> 32)},
                                    {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
      const uint64_t mixed = left ^ (((static_cast<uint64_t>(noise[1]) << 32) | noise[0]) & mask);
      left = right;
      right = mixed;
    }
    index = (left << half_bits_) | right;
  } while (index >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(index);
}

}  // namespace tandem::data
