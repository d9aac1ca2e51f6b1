// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a step minimises: a function of one micro-batch's log-probabilities and entropies. The step sums it over micro-batches and
// ranks. And what it counts and adds up on the way, by name: of one rank first, then of all.

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>

#include "tandem/algo/correction.h"
#include "tandem/algo/gap.h"
#include "tandem/algo/policy_loss.h"
#include "tandem/comm/group.h"
#include "tandem/train/micro_batch.h"

namespace tandem::algo {
struct Algorithm;
}

namespace tandem::train {

/// What there is to train on; known before the passes.
struct StepCounts {
  double tokens = 0;           ///< trainable ones: what a mean over tokens divides by
  double sequences = 0;        ///< with a trainable token
  double response_tokens = 0;  ///< trainable or not
  double sequence_tokens = 0;  ///< prompt and response of every row
  double computed_tokens = 0;  ///< what goes through the model: a shared prompt counts once, a row's last token not at all
  double replayed_rows = 0;    ///< rows that bring the experts of their tokens
  double signal_rows = 0;      ///< rows with an advantage that is not 0, at a trainable token

  /// The order in which the numbers travel.
  void each(auto&& visit) {
    visit(tokens), visit(sequences), visit(response_tokens), visit(sequence_tokens), visit(computed_tokens), visit(replayed_rows),
        visit(signal_rows);
  }
};

/// Sums over trainable tokens that passes bring.
struct StepSums {
  double loss = 0, entropy = 0, kl_ref = 0;
  double clipped = 0;                        ///< tokens whose ratio the clip range cut
  double kl_old = 0;                         ///< r - 1 - log r of the ratio r = current / old, which is never below 0
  double kl_rollout_train = 0;               ///< over the tokens of fresh rows
  algo::GapSums gap;                         ///< over the same tokens
  double weight = 0, outside = 0, rejected = 0;  ///< of the correction: weights; tokens out of its bounds; tokens left out
  double behavior_kl = 0, behavior_chi2 = 0;     ///< behavior - old; (old / behavior)^2 - 1
  double values = 0;                             ///< of a critic, before the updates
  double returns = 0, squared_returns = 0;       ///< what it should have said
  double errors = 0, squared_errors = 0;         ///< returns - values
  double router_z = 0, router_balance = 0;   ///< over tokens and sparse layers

  /// As above.
  void each(auto&& visit) {
    visit(loss), visit(entropy), visit(kl_ref), visit(clipped), visit(kl_old), visit(kl_rollout_train);
    gap.each(visit);
    visit(weight), visit(outside), visit(rejected), visit(behavior_kl), visit(behavior_chi2);
    visit(values), visit(returns), visit(squared_returns), visit(errors), visit(squared_errors);
    visit(router_z), visit(router_balance);
  }
};

struct StepTotals {
  StepCounts counts;  ///< of all ranks
  StepSums sums;      ///< of this rank's passes, until sum_up
  double ratio_max = 0, weight_max = 0;

  /// Of other rows of the same step.
  void add(const StepTotals& other);
};

/// What a model says of the R response tokens: log-probabilities and the entropy of each distribution, or a critic's values alone.
struct Said {
  at::Tensor of_tokens_R, entropy_R;
};

/// The part of the step's loss that a micro-batch adds: a scalar that carries the gradient. It reads the counts of the whole step, and
/// adds to the sums what the report tells.
using Objective = std::function<at::Tensor(const MicroBatch& batch, const Said& said, StepTotals& totals)>;

/// The weights of an update's correction over all ranks, from rows that bring old log-probabilities. Collective.
algo::WeightSum weights_of_all(comm::Group& world, bool speaks, std::span<const Row> rows, const algo::Correction& correction);

/// The algorithm's policy loss, corrected for samples of another policy, its penalty against the reference, and its bonus for entropy.
/// `weights` is what a correction that normalizes divides by. Rows and algorithm must outlive it.
Objective policy_objective(std::span<const Row> rows, const algo::Algorithm& algorithm, const algo::WeightSum& weights = {});

/// What a loss of the user's own reads of the rows of one update on one data-parallel replica, whole and end to end: R response tokens.
struct LossColumns {
  algo::PolicyLossInput policy;  ///< its logprobs_T are of the weights before the update, and carry no gradient
  at::Tensor entropy_R;          ///< of the distribution that each token was drawn from
  at::Tensor reference_R;        ///< undefined where the algorithm has no reference
};

/// What such a loss gives back. The gradient is continued through the model.
struct LossGradient {
  double loss = 0;        ///< the replica's share: shares of all add up to the update's loss
  at::Tensor logprobs_R;  ///< float32: by each log-probability
  at::Tensor entropy_R;   ///< float32: by each entropy; undefined: 0
};

/// `columns` is null on ranks that have nothing to ask it: those that share a replica with another, and replicas without a row. Where it
/// fails on one rank it must throw on all.
using UserLoss = std::function<LossGradient(const LossColumns* columns)>;

/// A function that may fail on any of `ranks`, those of all replicas, as one that fails on all: with a UserError that names the first.
UserLoss failing_alike(comm::Group& ranks, std::function<LossGradient(const LossColumns&)> function);

/// `said` holds all response tokens of `rows`.
LossColumns columns_of(std::span<const Row> rows, const Said& said, const algo::Algorithm& algorithm, const algo::WeightSum& weights,
                       const StepCounts& counts);
/// The loss whose gradient is given. Its report is policy_objective's, but for what only that loss would know. Rows and algorithm must
/// outlive it.
Objective given_objective(std::span<const Row> rows, const algo::Algorithm& algorithm, const algo::WeightSum& weights, LossGradient given);

/// A critic's loss against the rows' returns: algo/value_loss.h, aggregated as the algorithm's policy loss. Rows and algorithm must outlive
/// it.
Objective value_objective(std::span<const Row> rows, const algo::Algorithm& algorithm, double value_clip);

/// The mean negative log-likelihood of the trainable tokens.
Objective supervised_objective();

/// Whether a trainable token has an advantage other than 0.
bool has_signal(const Row& row);

/// Of the rows of all ranks; of ranks with the same rows, one speaks for them. `computed_tokens`: this rank's, through the model.
/// Collective.
StepCounts counts_of_all(comm::Group& world, bool speaks, std::span<const Row> rows, int64_t computed_tokens);

/// Sums and maximum become those of all ranks. A rank that does not speak brings its own tokens' router sums alone. Collective.
void sum_up(comm::Group& world, bool speaks, StepTotals& totals);

}  // namespace tandem::train
