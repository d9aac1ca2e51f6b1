// SPDX-License-Identifier: Apache-2.0
#pragma once
// The section `reward` of a recipe: which rules grade an answer, and the options of each rule, which live with it.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/base/options.h"
#include "tandem/data/shaping.h"
#include "tandem/reward/code_rule.h"
#include "tandem/reward/function_rules.h"
#include "tandem/reward/http_rule.h"
#include "tandem/reward/python_rule.h"

namespace tandem::reward {

/// Of the rule `model`, which is made above this module: serve/reward_model.h.
struct ModelOptions {
  std::string model;
  std::string model_dtype = "float32";
};
inline void describe(OptionVisitor& field, ModelOptions& o) {
  field("model", o.model, "model: a reward model, a Hugging Face directory of a ...ForSequenceClassification with one label.");
  field("model_dtype", o.model_dtype, "model: what it computes in.", one_of({"float32", "bfloat16"}));
}

/// Of the whole reward, whatever rules it has.
struct ShapingOptions {
  double scale = data::Shaping().scale;
  double clip_low = data::Shaping().low;
  double clip_high = data::Shaping().high;

  data::Shaping shaping() const { return {scale, clip_low, clip_high}; }
};
inline void describe(OptionVisitor& field, ShapingOptions& o) {
  field("scale", o.scale, "Advantages see the score times this; metrics and samples.sqlite have the score itself.", above(0));
  field("clip_low", o.clip_low, "Then the score counts as at least this.");
  field("clip_high", o.clip_high, "And as at most this.");
}

/// Of single rules: what may stand in the brackets behind a rule's name.
struct RuleOptions : BatchOptions, FunctionOptions, MathOptions, PythonOptions, HttpOptions, CodeOptions, ModelOptions {};
inline void describe(OptionVisitor& field, RuleOptions& o) {
  field("workers", o.workers, "Threads that grade beside generation, and Python workers of each rule that has them.", between(1, 1024));
  describe(field, static_cast<FunctionOptions&>(o));
  describe(field, static_cast<MathOptions&>(o));
  describe(field, static_cast<PythonOptions&>(o));
  field("timeout_s", o.timeout_s,
        "python, math_verify, http: seconds for one batch, the answers of a group, from the first byte to the last.", above(0));
  describe(field, static_cast<HttpOptions&>(o));
  describe(field, static_cast<CodeOptions&>(o));
  describe(field, static_cast<ModelOptions&>(o));
}

/// Of what fails.
struct ErrorOptions {
  std::string on_error = "end";
};
inline void describe(OptionVisitor& field, ErrorOptions& o) {
  field("on_error", o.on_error,
        "When grading a sample fails (an exception, a dead server, a score that is not finite): end saves the last step and ends the run; "
        "zero scores the sample 0, counts it in the metric reward/failed, and goes on.",
        one_of({"end", "zero"}));
}

struct Options : RuleOptions, ShapingOptions, ErrorOptions {
  std::string rule;
  std::vector<std::string> rules;
  std::vector<std::string> by_source;
};

/// With the full length of an answer, where they leave it open: that of the longest response that is asked for.
inline Options for_responses_of(int64_t max_new_tokens, Options o) {
  if (o.max_tokens == 0) o.max_tokens = max_new_tokens;
  return o;
}

/// Of the option `rule`, with the names of all rules; rule.cpp has them.
std::string_view rule_help();

inline void describe(OptionVisitor& field, Options& o) {
  field("rule", o.rule, rule_help());
  field("rules", o.rules, "Several rules with weights, such as [number=1.0, think_format=0.2]; replaces `rule`.");
  field("by_source", o.by_source,
        "A rule for each data set, by the name that data.source_column gives: [openai/gsm8k=gsm8k, lighteval/MATH=math]; other sets "
        "go by `rules` or `rule` if one is given, else they are an error.");
  describe(field, static_cast<ErrorOptions&>(o));
  describe(field, static_cast<ShapingOptions&>(o));
  describe(field, static_cast<RuleOptions&>(o));
}

}  // namespace tandem::reward
