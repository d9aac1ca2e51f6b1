// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tandem/base/options.h"

namespace tandem::model {

struct LoraOptions {
  int64_t rank = 0;                                  ///< 0: no adapters, the whole model is trained
  double alpha = 16;
  std::vector<std::string> targets = {"all-linear"};  ///< the last parts of module names, such as q_proj

  double scale() const { return alpha / static_cast<double>(rank); }
};

inline void describe(OptionVisitor& field, LoraOptions& o) {
  field("lora_rank", o.rank, "Rank of the adapters that are trained in place of the model (LoRA); 0 trains the model.", at_least(0));
  field("lora_alpha", o.alpha, "Scale of the adapters, over their rank.", above(0));
  field("lora_targets", o.targets,
        "Matrices with an adapter, such as q_proj and v_proj. all-linear: those of attention, MLPs and shared experts.");
}

}  // namespace tandem::model
