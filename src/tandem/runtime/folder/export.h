// SPDX-License-Identifier: Apache-2.0
#pragma once
// The actor in the formats of others: a Hugging Face directory, and with LoRA a PEFT adapter.

#include <string>

#include "tandem/runtime/actor.h"

namespace tandem::runtime {

/// Threads    one per rank.
class Exporter {
 public:
  /// `model_dir` is where the run started: its tokenizer's files are copied. The chat template of the recipe is read now, so that a
  /// file that goes meanwhile ends no run.
  Exporter(RankContext& context, std::string model_dir);

  /// Writes `dir`/hf, with LoRA merged, and then `dir`/adapter, which PEFT loads on top of the start. Rank 0 writes, tensor by
  /// tensor. Collective, to its end even where it fails. Errors: PeerError on rank 0 naming the path.
  void write(const std::string& dir, Actor& actor) const;

  const std::string& model_dir() const { return model_dir_; }

 private:
  void write_model(const std::string& dir, Actor& actor) const;
  void write_adapter(const std::string& dir, const Actor& actor, const std::map<std::string, at::Tensor>& tensors) const;

  RankContext& context_;
  std::string model_dir_, chat_template_;
};

/// Whether `dir` holds a whole model that write() has left there.
bool holds_model(const std::string& dir);

}  // namespace tandem::runtime
