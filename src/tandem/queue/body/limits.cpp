// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/body/limits.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "tandem/base/check.h"
#include "tandem/queue/body/body.h"

namespace tandem::queue {
namespace {

// Of the lists that have an entry for each token.
constexpr bool is_by_token(data::Entries entries) { return entries == data::Entries::kTokens || entries == data::Entries::kTokensOrNone; }
constexpr int64_t token_bytes() {
  int64_t bytes = 0;
  data::each_body_column([&]<class Column>(const Column& column) {
    if (is_by_token(column.entries)) bytes += sizeof(typename Column::Value);
  });
  return bytes;
}
constexpr int64_t kTokenBytes = token_bytes();

// Of a list with `entries` entries that has one for each of `tokens` tokens, or may have none.
template <class Column>
bool is_whole(const Column& column, int64_t entries, int64_t tokens) {
  return !is_by_token(column.entries) || entries == tokens || (column.entries == data::Entries::kTokensOrNone && entries == 0);
}
std::string wrong_length(const char* name, int64_t entries, int64_t tokens) {
  return join_text("has ", entries, " ", name, " of ", tokens, " tokens");
}
constexpr int64_t kMostBytes = int64_t{1} << 40;

int64_t product(int64_t a, int64_t b) { return a == 0 || b < kMostBytes / a ? a * b : kMostBytes; }

// What a rule looks at.
struct Claim {
  const data::Sample& sample;
  int64_t prompt_tokens;
  int64_t oldest, newest;
  const GroupLimits& limits;

  int64_t tokens() const { return std::ssize(sample.ids); }
};

std::string none_of(const char* what, auto value) { return join_text("has ", what, " of ", value); }

// The first that is not right.
std::string first_wrong(const char* what, const auto& values, auto is_right) {
  const auto wrong = std::ranges::find_if_not(values, is_right);
  return wrong == values.end() ? "" : none_of(what, *wrong);
}

bool is_logprob(float value) { return value <= 0 && value >= kLeastLogprob; }  // false for one that is no number

constexpr std::string (*kRulesOfTokens[])(const Claim&) = {
    [](const Claim& c) {
      return c.tokens() <= c.limits.response_tokens ? "" : join_text("has ", c.tokens(), " tokens, of at most ", c.limits.response_tokens);
    },
    [](const Claim& c) {
      std::string fault;
      data::each_list(c.sample, [&](const auto& column, const auto& list) {
        if (!is_whole(column, std::ssize(list), c.tokens())) fault = wrong_length(column.name, std::ssize(list), c.tokens());
      });
      return fault;
    },
    [](const Claim& c) { return first_wrong("a token", c.sample.ids, [&](int64_t id) { return id >= 0 && id < c.limits.vocab_size; }); },
    [](const Claim& c) { return first_wrong("a log-probability", c.sample.logprobs, is_logprob); },
    [](const Claim& c) { return first_wrong("a kept mass", c.sample.kept_mass, is_logprob); },
    [](const Claim& c) {
      return first_wrong("a token of version", c.sample.versions, [&](int64_t each) { return each >= c.oldest && each <= c.newest; });
    },
    [](const Claim& c) {  // whatever else the table has
      std::string fault;
      data::each_list(c.sample, [&](const auto& column, const auto& list) {
        if constexpr (std::is_floating_point_v<typename std::remove_cvref_t<decltype(column)>::Value>)
          if (fault.empty()) fault = first_wrong(column.name, list, [](auto value) { return std::isfinite(value); });
      });
      return fault;
    },
    [](const Claim& c) { return first_wrong("a mark", c.sample.trainable, [](int64_t mark) { return mark == 0 || mark == 1; }); },
    [](const Claim& c) {
      return first_wrong("a route", c.sample.routes, [&](int64_t route) { return route >= -1 && route < c.limits.num_experts; });
    },
    [](const Claim& c) {
      const int64_t width = c.limits.route_width, routes = std::ssize(c.sample.routes);
      const bool fits = routes == 0 || width < 0 || routes == (c.prompt_tokens + c.tokens() - 1) * width;
      return fits ? "" : none_of("a number of routes", routes);
    },
    [](const Claim& c) {
      const bool fits = std::ssize(c.sample.text) <= product(kMostTokenBytes, c.tokens() + 1);
      return fits ? "" : none_of("a text", join_text(c.sample.text.size(), " bytes"));
    }};

bool is_score(double score) { return std::isfinite(score); }

std::string fault_of_name(const std::string& name) {
  const auto is_shown = [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f; };
  if (!name.empty() && name.size() <= kMostPartChars && std::ranges::all_of(name, is_shown)) return "";
  return join_text("names a part of a score with ", name.size(), " characters, not 1 to ", kMostPartChars, " that can be shown");
}

}  // namespace

int64_t GroupLimits::row_bytes() const {
  const int64_t all = std::min(kAny, prompt_tokens + response_tokens);
  return std::min(kMostBytes, product(kTokenBytes + kMostTokenBytes, response_tokens) + product(sizeof(int32_t), prompt_tokens) +
                                  product(2 * std::max<int64_t>(0, route_width), all));
}

int64_t GroupLimits::group_bytes() const { return product(group_size, row_bytes()); }

std::string fault_of_measures(std::span<const int64_t> of_group, PolicyVersion start, PolicyVersion newest, const GroupLimits& limits) {
  const auto width = static_cast<size_t>(num_measures());
  for (size_t at = 0; at + width <= of_group.size(); at += width) {
    const auto sample = of_group.subspan(at, width);
    const auto lengths = sample.first(width - kNumFacts);
    const auto is_length = [](int64_t length) { return length >= 0 && length <= kMostBytes; };
    if (!std::ranges::all_of(lengths, is_length)) return "has a length that none has";
    const int64_t tokens = lengths[kResponse], prompt = lengths[kPromptIds];
    if (tokens == 0) return "has a response without a token";
    if (tokens > limits.response_tokens) return join_text("has a response of ", tokens, " tokens, of at most ", limits.response_tokens);
    if (at == 0 && prompt == 0) return "has no prompt";
    if (prompt > (at > 0 ? 0 : limits.prompt_tokens)) return join_text("has a prompt of ", prompt, " tokens where none is so long");
    std::string fault;
    size_t field = 0;
    data::each_body_column([&](const auto& column) {
      const int64_t entries = lengths[field++];
      if (!is_whole(column, entries, tokens)) fault = wrong_length(column.name, entries, tokens);
    });
    if (!fault.empty()) return fault;
    if (lengths[kText] > product(kMostTokenBytes, tokens + 1)) return join_text("has a text of ", lengths[kText], " bytes");
    if (lengths[kPromptText] + lengths[kAnswer] + lengths[kDataSource] > 0) return "brings texts of the run's own prompt";
    const TokenFacts facts = TokenFacts::from(sample.last(kNumFacts));
    if (facts.oldest < value(start) || facts.oldest > facts.newest || facts.newest > value(newest))
      return join_text("has tokens of versions ", facts.oldest, " to ", facts.newest, ", and began with ", value(start));
    if (facts.num_trainable < 1 || facts.num_trainable > tokens || (lengths[kTrainable] == 0 && facts.num_trainable < tokens))
      return join_text("has ", facts.num_trainable, " trainable tokens of ", tokens);
  }
  return "";
}

std::string fault_of_tokens(const data::Sample& sample, int64_t prompt_tokens, PolicyVersion oldest, PolicyVersion newest,
                            const GroupLimits& limits) {
  const Claim claim{sample, prompt_tokens, value(oldest), value(newest), limits};
  for (const auto& rule : kRulesOfTokens)
    if (std::string fault = rule(claim); !fault.empty()) return fault;
  return "";
}

std::string fault_of_scores(const data::Group& head, const std::set<std::string>& names) {
  std::set<std::string> new_names;
  const auto fault_of = [&](const data::Sample& sample) -> std::string {
    if (sample.finish != data::FinishReason::kStop && sample.finish != data::FinishReason::kLength) return "has a sample that did not end";
    if (!is_score(sample.score)) return none_of("a score", sample.score);
    if (sample.parts.size() > kMostParts) return none_of("a score", join_text(sample.parts.size(), " parts"));
    for (const auto& [name, part] : sample.parts) {
      if (std::string fault = fault_of_name(name); !fault.empty()) return fault;
      if (!is_score(part)) return none_of("a part of a score", part);
      if (!names.contains(name)) new_names.insert(name);
    }
    if (names.size() + new_names.size() > kMostPartNames)
      return join_text("names part ", names.size() + new_names.size(), " of its scores, of at most ", kMostPartNames);
    return "";
  };
  for (const data::Sample& sample : head.samples)
    if (std::string fault = fault_of(sample); !fault.empty()) return fault;
  if (head.greedy && !head.greedy->scored) return "brings a greedy answer without a score";
  return head.greedy ? fault_of(*head.greedy) : "";
}

}  // namespace tandem::queue
