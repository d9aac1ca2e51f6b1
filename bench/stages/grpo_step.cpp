// SPDX-License-Identifier: Apache-2.0
#include "stages/grpo_step.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "report.h"
#include "stages/whole_run.h"

namespace tandem::bench {

using nlohmann::json;

void describe(OptionVisitor& field, GrpoStepOptions& o) {
  field("prompts", o.prompts, "Prompts per step", at_least(1));
  field("gens", o.gens, "Responses per prompt", at_least(1));
  field("prompt_len", o.prompt_len, "Tokens of a prompt", at_least(1));
  field("new", o.new_tokens, "Tokens of a response", at_least(1));
  field("beta", o.beta, "Weight of the KL term", at_least(0));
  describe(field, static_cast<Computing&>(o));
}

json grpo_step(const GrpoStepOptions& o) {
  Figures figures;
  const double tokens = static_cast<double>(o.prompts * o.gens * o.new_tokens), bound = o.parity ? 0 : o.dtype == "float32" ? 1e-6 : 2e-3;
  const Shape shape{o.prompts, o.gens, o.prompt_len, o.new_tokens, o.repeats + 1};
  double beta = o.beta;
  for (const json& m : metrics_of_run(o, shape, {{"algo.kl_coef", option_text(&beta)}})) {
    const double kl = m.at("actor/kl_rollout_train"), length = m.at("data/response_tokens_mean");
    TANDEM_CHECK(std::abs(kl) <= bound, "rollout and training disagree: ", kl);
    TANDEM_CHECK(length == static_cast<double>(o.new_tokens), "responses of another length");
    TANDEM_CHECK(std::isfinite(m.at("actor/grad_norm").get<double>()), "gradient");
    if (m.at("step") == 1) continue;  // the warm-up
    if (m.at("actor/grad_norm") == 0) continue;  // all scores were alike: without the backward pass that is to be measured
    const double step = m.at("time/step_s"), generate = m.at("time/rollout_s");
    figures["step_s"].push_back(step);
    figures["generate_s"].push_back(generate);
    figures["train_s"].push_back(step - generate);
    figures["reference_s"].push_back(m.value("time/reference_s", 0.0));
    figures["tokens_per_s"].push_back(tokens / step);
  }
  if (figures.empty()) throw UserError("bench grpo_step", "no step had a spread of scores", "more --prompts or --gens");
  return report("grpo_step", o, {{"prompts", o.prompts}, {"gens", o.gens}, {"prompt_len", o.prompt_len}, {"new", o.new_tokens},
                                 {"beta", o.beta}}, figures);
}

}  // namespace tandem::bench
