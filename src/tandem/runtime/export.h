// SPDX-License-Identifier: Apache-2.0
#pragma once
// The actor in the formats of others: a Hugging Face directory, and with LoRA a PEFT adapter.

#include <map>
#include <string>

#include "tandem/runtime/actor.h"

namespace tandem::runtime {

/// Whole tensors of the actor, on the first rank; empty on the others.
struct Exported {
  std::map<std::string, at::Tensor> weights;   ///< with LoRA, merged
  std::map<std::string, at::Tensor> adapters;  ///< empty where the whole model is trained
};
/// Collective.
Exported gather_export(Actor& actor);

/// Writes `dir`/hf (weights, config.json, the tokenizer's files of `model_dir`) and, with LoRA, `dir`/adapter, which PEFT loads
/// on top of `model_dir`. For the first rank. Errors: PeerError naming the path if something cannot be written.
void write_export(const std::string& dir, const Actor& actor, const Exported& exported, const std::string& model_dir);

}  // namespace tandem::runtime
