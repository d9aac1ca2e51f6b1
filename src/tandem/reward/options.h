// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which rules grade an answer, and how.

#include <cstdint>
#include <string>
#include <vector>

#include "tandem/base/options.h"

namespace tandem::reward {

struct Options {
  std::string rule;
  std::vector<std::string> rules;
  std::vector<std::string> by_source;
  int64_t workers = 1;
  std::string method = "strict";
  std::string pattern;
  std::string choices_column = "choices";
  std::string schema;
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
  std::string fallback = "none";
  std::string python;
  std::string python_executable;
  int64_t python_retries = 1;
  double timeout_s = 60;
  std::string url;
  int64_t http_retries = 3;
  double code_timeout_s = 10;
  int64_t code_memory_mib = 512;
  int64_t code_output_kib = 1024;
  int64_t code_file_mib = 16;
  std::string code_score = "all";
  std::string model;
  std::string model_dtype = "float32";
};

inline void describe(OptionVisitor& field, Options& o) {
  field("rule", o.rule,
        "Rule that grades an answer, such as `number` or `gsm8k(method=flexible)`; empty: `python`, `http` or `model` if `python`, `url` "
        "or `model` is set, else `exact`.");
  field("rules", o.rules, "Several rules with weights, such as [number=1.0, think_format=0.2]; replaces `rule`.");
  field("by_source", o.by_source,
        "A rule for each data set, by the name that data.source_column gives: [openai/gsm8k=gsm8k, lighteval/MATH=math]; other sets "
        "go by `rules` or `rule` if one is given, else they are an error.");
  field("workers", o.workers, "Threads that grade beside generation, and Python workers of each rule that has them.", at_least(1));
  field("method", o.method, "gsm8k: strict wants `#### N`, flexible takes the last number.", one_of({"strict", "flexible"}));
  field("pattern", o.pattern, "regex: the pattern to find; empty takes the right answer as the pattern.");
  field("choices_column", o.choices_column,
        "choice: column with the texts of A, B, ... of a row that has them; dots go into it. The right answer may then be a text or an "
        "index, too.");
  field("schema", o.schema, "json: a JSON Schema the answer must keep, as a file or as text; empty: any JSON.");
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
  field("fallback", o.fallback, "math: who is asked where the built-in comparison cannot read an answer.", one_of({"none", "math_verify"}));
  field("python", o.python, "python: a function of yours, FILE.py:NAME; docs/rewards.md has its form.");
  field("python_executable", o.python_executable,
        "python, math_verify, code: the Python that runs them; empty: python3 on PATH (math_verify: the one scripts/setup made).");
  field("python_retries", o.python_retries, "python, math_verify: how often a batch whose worker died or hung is tried again.",
        at_least(0));
  field("timeout_s", o.timeout_s, "python, math_verify, http: seconds for one batch, the answers of a group.", above(0));
  field("url", o.url, "http: where batches are posted to; docs/rewards.md has their form.");
  field("http_retries", o.http_retries, "http: how often a batch is posted again when the server fails or does not answer.", at_least(0));
  field("code_timeout_s", o.code_timeout_s, "code: seconds a program may run, per test.", above(0));
  field("code_memory_mib", o.code_memory_mib, "code: memory a program may take.", at_least(64));
  field("code_output_kib", o.code_output_kib, "code: what a program may print.", at_least(1));
  field("code_file_mib", o.code_file_mib, "code: what a program may write to its private folder.", at_least(1));
  field("code_score", o.code_score, "code: 1 if all tests pass, or the share that does.", one_of({"all", "share"}));
  field("model", o.model, "model: a reward model, a Hugging Face directory of a ...ForSequenceClassification with one label.");
  field("model_dtype", o.model_dtype, "model: what it computes in.", one_of({"float32", "bfloat16"}));
}

}  // namespace tandem::reward
