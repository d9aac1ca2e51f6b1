// SPDX-License-Identifier: Apache-2.0
#pragma once
// Scores rows under a model, and trains a model on rows. One optimizer update per step.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <limits>
#include <string>
#include <vector>

#include "tandem/device/arena.h"
#include "tandem/model/decoder.h"
#include "tandem/model/lora.h"
#include "tandem/monitor/recorder.h"
#include "tandem/train/micro_batch.h"
#include "tandem/train/objective.h"
#include "tandem/train/optimizer.h"
#include "tandem/train/options.h"
#include "tandem/train/passes.h"
#include "tandem/train/router_load.h"

namespace tandem::algo {
struct Algorithm;
}

namespace tandem::train {

/// Errors: UserError naming `section` and the option. A model without experts has no router to train; adapters could not carry a moving
/// correction bias.
void check_options(const Options& options, const model::ModelConfig& config, const model::LoraOptions& lora, const std::string& section);

/// Of the option's word.
model::Recompute recompute_of(const Options& options);

/// Log-probabilities of each row's response tokens, in passes of `budget_tokens`; no gradient. Empty but on the last pipeline stage.
/// Collective over the ranks of the decoder's place.
std::vector<std::vector<float>> score(const model::Decoder& decoder, const model::ModelParameters& parameters, std::span<const Row> rows,
                                      double temperature, int64_t budget_tokens);

/// What the first label of a score head says of the text before each response token; passes and ranks as for score().
std::vector<std::vector<float>> token_values(const model::Decoder& decoder, const model::ModelParameters& parameters,
                                             std::span<const Row> rows, int64_t budget_tokens);

/// Owner of what passes allocate, in the arena; between passes it is none.
inline constexpr const char* kActivations = "activations";

/// How the correction for samples of another policy acted, as means over trainable tokens; all but rejected_fraction are 0 without one.
struct CorrectionReport {
  double weight_mean = 0, weight_max = 0;
  double clipped_fraction = 0;   ///< weights outside the bounds
  double rejected_fraction = 0;  ///< tokens left out
  double kl = 0, chi2 = 0;       ///< of behavior against old: KL by k1, and the chi-squared divergence of old from behavior
};

/// What a critic knew before the updates, over trainable tokens.
struct ValueReport {
  double values_mean = 0;
  /// 1 - var(returns - values) / var(returns): 1 knows all, 0 as much as a constant does. 0 where all returns are alike.
  double explained_variance = 0;
};

/// What one update did, over all ranks.
struct StepReport {
  double loss = 0, grad_norm = 0, lr = 0;
  double entropy = 0;               ///< mean over trained tokens
  double kl_ref = 0;                ///< mean estimate against the reference
  std::optional<double> kl_rollout_train;  ///< k3 mean, rollout against training, over the tokens of fresh rows, if there are any
  int64_t gap_tokens = 0;                  ///< of fresh rows
  std::optional<algo::GapReport> gap;      ///< rollout against training, over the same tokens, if there are any
  double clip_fraction = 0, ratio_max = 0;
  double kl_old = 0;                ///< KL of the old policy against the current one: the mean of r - 1 - log r, r = current / old
  CorrectionReport correction;      ///< of policy updates
  ValueReport value;                ///< of a critic's updates
  bool skipped = false;             ///< no token was trainable, nonfinite, or too far from old: the weights are as before
  bool without_signal = false;      ///< of policy updates: the advantage of every trainable token is 0
  int64_t nonfinite = 0;            ///< updates that were left out, for their loss or gradient was not finite
  double trained_tokens = 0;        ///< response tokens that were trainable
  double sequence_tokens = 0;       ///< prompt and response of every row
  double pass_tokens = 0;           ///< the same, as often as a row went through an update
  std::optional<double> router_load_max;  ///< of a sparse model: the largest load of an expert, 1 where all have the same
  std::optional<double> router_balance, router_z;  ///< what the coefficients multiply, as a mean over sparse layers
  int64_t activation_peak_bytes = 0;  ///< most that the passes of this rank held at once
  double computed_tokens = 0;       ///< what went through the model: a shared prompt counts once, a row's last token not at all
  /// Of this rank's rows, under the weights before the update; on the last pipeline stage, empty on the others.
  std::vector<std::vector<float>> logprobs;
};

struct TrainerSetup {
  const model::ParameterTable& table;
  const model::Decoder& decoder;
  at::Tensor values;                ///< flat, compute dtype
  Ranks ranks;
  device::Arena& arena;
  model::LoraOptions lora;          ///< rank 0: the whole model is trained
  uint64_t seed = 0;                ///< of fresh adapters
  device::Arena* host = nullptr;    ///< for Options::swap_optimizer, and for an optimizer that leaves the device
  const device::Swappable* home = nullptr;  ///< of the values, if they can leave
  monitor::Recorder* recorder = nullptr;  ///< gets spans of the passes and of the gradients' sums
  std::string owner_prefix;         ///< before the names of what it holds in the arenas
  std::string section = "train";    ///< of its options, as errors name it
};

/// The updates on one batch as one: means over trained tokens (kl_old: of the last epoch), the largest of largest values, tokens of one
/// epoch, which had `mini_batches` updates. It has no log-probabilities.
StepReport joined(std::span<const StepReport> updates, int64_t mini_batches);

/// Makes the objective once all rows have gone forward: `said` has all R response tokens of the replica, without gradient. It is empty but
/// on the last pipeline stage. Collective. Errors: what a user's loss throws, on all ranks.
using LateObjective = std::function<Objective(const Said& said)>;

/// What is minimised: one of the two objectives. Rows and algorithm must outlive it.
struct Lesson {
  Objective objective;
  LateObjective late;
  bool by_advantages = false;  ///< its gradient is 0 where all advantages are
  double max_kl = std::numeric_limits<double>::infinity();  ///< no update by step() where kl_old is above it
};

/// Ownership  owns gradients and optimizer state; uses the flat values.
/// Threads    one; collective: all ranks of the layout call the same steps, DP ranks with their own rows (maybe none).
/// Errors     under Options::nonfinite `end`, UserError on all ranks if loss or gradient is not finite; the weights are then unchanged.
/// Read next  micro_batch.h (packing), objective.h (the loss), optimizer.h (the update)
class Trainer {
 public:
  /// Errors: as check_options.
  Trainer(const Options& options, const TrainerSetup& setup);
  ~Trainer();

  /// Call it once the values are loaded: it takes the master weights from them, and adapters start anew.
  void start();
  /// Reads the state of a trainer with the same options, after start(). What was accumulated is dropped.
  void restore(int64_t num_steps, const ReadPiece& read);
  /// Call it once all ranks are restored. Collective.
  void share_values();

  /// One update by the algorithm's loss, or by one of the user's own. The trainer asks that once, when all rows have gone forward:
  /// docs/design/user_loss.md. The algorithm's has no gradient where all advantages are 0 and no other term has one. Then there is no
  /// backward pass, and the optimizer moves as on a gradient of zeros: docs/design/optimizer.md. The update is skipped where the passes
  /// find kl_old above algorithm.updates.max_kl. Errors: what the user's throws.
  StepReport policy_step(std::span<const Row> rows, const algo::Algorithm& algorithm, double temperature, double lr,
                         const UserLoss& loss = {});
  /// The passes of a policy step without its update: the gradients add to those since the last update. Each call divides by its own
  /// tokens. The report is of these rows alone.
  StepReport accumulate(std::span<const Row> rows, const algo::Algorithm& algorithm, double temperature, const UserLoss& loss = {});
  /// The update by what accumulate() added up, at least once. The report is of all of it.
  StepReport update(double lr);
  /// One update of a model with a score head by value_objective.
  StepReport value_step(std::span<const Row> rows, const algo::Algorithm& algorithm, double value_clip, double lr);
  /// One update by the mean negative log-likelihood of the response tokens.
  StepReport supervised_step(std::span<const Row> rows, double lr);
  /// Each update calls it before it changes weights or the optimizer's state, which others may read until then.
  void before_update(std::function<void()> wait) { before_update_ = std::move(wait); }

  Optimizer& optimizer() { return optimizer_; }
  const Optimizer& optimizer() const { return optimizer_; }
  /// Null where the whole model is trained.
  const model::Lora* lora() const { return lora_.get(); }
  const model::ModelParameters& parameters() const { return parameters_; }
  const at::Tensor& grads() const { return grads_.tensor(); }
  /// Between steps: gradients lose their memory, and must have it again before the next.
  void release_gradients();
  void back_gradients();
  bool gradients_away() const { return grads_.is_away(); }
  const Options& options() const { return options_; }

 private:
  struct Step;
  StepReport step(std::span<const Row> rows, const Lesson& lesson, double temperature, double lr);
  Lesson policy_lesson(std::span<const Row> rows, const algo::Algorithm& algorithm, const UserLoss& loss) const;

  Options options_;
  TrainerSetup setup_;
  std::unique_ptr<model::Lora> lora_;
  device::Swappable grads_;        // of what is trained: the model or its adapters
  model::ModelParameters parameters_;
  Optimizer optimizer_;
  WaitingRoom waiting_;
  std::unique_ptr<Step> begun_;    // what was accumulated since the last update
  std::function<void()> before_update_;
};

}  // namespace tandem::train
