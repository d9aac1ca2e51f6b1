// SPDX-License-Identifier: Apache-2.0
#pragma once
// The model of a recipe on one rank, as the run will have it, under made-up rows.

#include <map>
#include <memory>
#include <vector>

#include "tandem/algo/algorithm.h"
#include "tandem/fit/choose.h"
#include "tandem/policy/actor.h"
#include "tandem/policy/trained_role.h"

namespace tandem::fit {

/// Tokens of the longest prompt, and of the response behind it; of both together in an evaluation, 0 without any.
struct Longest {
  int64_t prompt = 1, response = 1, eval = 0;
};

/// Ownership  owns what is trained, its trainers and an engine; all goes with it.
/// Threads    one per rank; all calls are collective.
/// Errors     as TrainedRole::load, Trainer and Engine have them; std::bad_alloc where the smallest pass does not fit.
class Probe {
 public:
  /// `config` is that of the parts; the actor trains under options of its own, whose passes hold two rows.
  Probe(const policy::RunParts& parts, const model::ModelConfig& model, const Longest& longest);

  /// The actor's weights, and those of the critic, where the algorithm trains one.
  void load(const std::string& model_dir);
  /// With bytes of passes and speeds on this rank; budgets, counts and what is held are the caller's.
  Measured measure(Measured so_far);
  /// After measure(): bytes by owner of what stays between stages, on the device.
  const std::map<std::string, int64_t>& held() const { return held_; }
  /// Tokens per second that the slowest rank decodes, `running` sequences at a time.
  double decode_tokens_s(int64_t running);

 private:
  struct Pass {
    int64_t tokens = 0, bytes = 0;
    double tokens_s = 0;
  };
  std::vector<train::Row> rows(size_t count) const;
  void probe_passes(policy::TrainedRole& role, PassBytes& train, PassBytes& score, double& train_tokens_s, double& score_tokens_s);
  Pass train(policy::TrainedRole& role, size_t count);
  Pass score(const policy::TrainedRole& role, size_t count);
  int64_t decode_bytes(int64_t running);
  rollout::Options engine_options(int64_t running) const;

  const policy::RunParts& parts_;
  const Longest longest_;
  const algo::Algorithm algorithm_;
  std::vector<int32_t> ids_;        // of one made-up row
  std::vector<float> behavior_;
  std::map<std::string, int64_t> held_;
  int64_t packed_bytes_ = 0;
  int64_t graph_bytes_ = 0;  // of the last engine
  policy::Actor actor_;
  std::unique_ptr<policy::TrainedRole> critic_;  // null where the algorithm trains none
};

}  // namespace tandem::fit
