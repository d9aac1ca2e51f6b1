// SPDX-License-Identifier: Apache-2.0
#pragma once
// A trainer's peers where it is alone, and the way of its state to another of the same layout.

#include "../../tiny_model.h"
#include "tandem/train/trainer.h"

namespace tandem::test {

inline train::Ranks ranks_alone(const TinyModel& model) {
  return train::Ranks::of_one(*model.alone);
}

inline void copy_state(const train::Trainer& from, train::Trainer& to) {
  const auto read = [&](const std::string& name, const train::StatePiece& piece, at::Tensor out) {
    out.copy_(from.optimizer().state().tensor(name).narrow(0, piece.at, out.numel()));
  };
  to.restore(from.optimizer().num_steps(), read);
  to.share_values();
}

}  // namespace tandem::test
