// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which rules grade an answer, and how.

#include <cstdint>
#include <string>
#include <vector>

#include "tandem/base/options.h"

namespace tandem::reward {

struct Options {
  std::string rule = "exact";
  std::vector<std::string> rules;
  int64_t workers = 1;
  std::string method = "strict";
  std::string pattern;
  bool strict_box = false;
  bool integer_gold = false;
  double cosine_min_wrong = -1.0;
  double cosine_max_wrong = -0.5;
  double cosine_min_right = 0.5;
  double cosine_max_right = 1.0;
  int64_t max_tokens = 1000;
  int64_t overlong_cache = 200;
  int64_t repetition_ngram = 3;
  double repetition_penalty = -1.0;
};

inline void describe(OptionVisitor& field, Options& o) {
  field("rule", o.rule, "Rule that grades an answer, such as `number` or `gsm8k(method=flexible)`.");
  field("rules", o.rules, "Several rules with weights, such as [number=1.0, think_format=0.2]; replaces `rule`.");
  field("workers", o.workers, "Threads that grade beside generation.", at_least(1));
  field("method", o.method, "gsm8k: strict wants `#### N`, flexible takes the last number.", one_of({"strict", "flexible"}));
  field("pattern", o.pattern, "regex: the pattern to find; empty takes the right answer as the pattern.");
  field("strict_box", o.strict_box, "dapo: the answer must stand in a box.");
  field("integer_gold", o.integer_gold, "dapo: compare with the right answer as an integer.");
  field("cosine_min_wrong", o.cosine_min_wrong, "cosine: score of a wrong answer of no length.");
  field("cosine_max_wrong", o.cosine_max_wrong, "cosine: score of a wrong answer of full length.");
  field("cosine_min_right", o.cosine_min_right, "cosine: score of a right answer of full length.");
  field("cosine_max_right", o.cosine_max_right, "cosine: score of a right answer of no length.");
  field("max_tokens", o.max_tokens, "cosine, overlong: full length of an answer in tokens.", at_least(1));
  field("overlong_cache", o.overlong_cache, "overlong: the penalty grows over this many tokens below the full length.", at_least(1));
  field("repetition_ngram", o.repetition_ngram, "repetition: words in an n-gram.", at_least(1));
  field("repetition_penalty", o.repetition_penalty, "repetition: score when everything repeats.");
}

}  // namespace tandem::reward
