// SPDX-License-Identifier: Apache-2.0
#pragma once
// A model opened for a training loop of the user's own: sample, score, train, save.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tandem/base/error.h"
#include "tandem/config/config.h"
#include "tandem/data/sample.h"
#include "tandem/serve/inference.h"
#include "tandem/text/chat.h"
#include "tandem/train/trainer.h"

namespace tandem::session {

/// A response with its columns, one value per response token; a column may be empty where nothing reads it.
struct Row {
  std::vector<int32_t> prompt, response;
  std::vector<float> behavior;      ///< log-probabilities as sampled
  std::vector<float> advantages;
  std::vector<float> old;           ///< before the first update on the row; empty: as `version` says
  std::vector<float> reference;     ///< of a reference model
  std::vector<uint8_t> trainable;   ///< 0 where a token is not trained on; empty: all are
  /// Updates of this session before it sampled the row; none: another policy did. Where weights have moved since, old is behavior; else it
  /// is the current values.
  std::optional<int64_t> version;
};

/// A function of one replica's rows, in place of the recipe's algorithm.
using Loss = std::function<train::LossGradient(const train::LossColumns&)>;

/// Ownership  owns model, optimizer and engines, on threads of its own.
/// Threads    one calls, in the process that opened it; not from within a loss.
/// Errors     UserError for input that cannot be used, and for what a loss throws; Interrupted where a sample() was asked to stop. The
///            session then goes on as if the call had not been made; a step() loses its gradients. After any other error, and where a
///            load() fails, its ranks are gone, and calls throw PeerError.
class Session {
 public:
  /// Reads the sections run, model, rollout, algo, train, checkpoint and parallel of a recipe, and opens model.path. `asked_to_stop` is
  /// asked while a call waits; a sample() then ends early.
  /// Errors: UserError for a recipe that sets options that a session does not read, for a placement that is not colocated, and for what
  /// the model or its layout cannot be.
  Session(const config::RunConfig& config, StopRequested asked_to_stop);
  ~Session();

  /// The most tokens of a prompt with its answer.
  int64_t context_tokens() const;
  /// Null where the model has none.
  const text::Tokenizer* tokenizer() const;
  /// The tokens of a text, or of messages by the model's chat template. Errors: UserError where there is no tokenizer or no template.
  std::vector<int32_t> encoded(const std::string& text) const;
  std::vector<int32_t> encoded(const text::Conversation& messages) const;

  /// Answers each prompt `how.n` times with the weights as they are; prompts need their ids alone. Groups are in order. Each sample draws
  /// other random numbers; the same calls under one run.seed draw the same.
  std::vector<data::Group> sample(std::vector<data::Prompt> prompts, const serve::GenerateOptions& how);
  /// Of each response token, under the weights as they are, with the logits divided by `temperature`.
  std::vector<std::vector<float>> logprobs(std::span<const Row> rows, double temperature);

  /// Adds the gradient of a loss to those since the last update. The loss divides by the tokens or rows of this call alone. Without a
  /// `loss` it is that of the recipe's algorithm.
  train::StepReport forward_backward(std::span<const Row> rows, double temperature, const Loss& loss = {});
  /// One update by these gradients; with the rate that the recipe has for its number where `lr` is none. Errors: UserError where that
  /// has no end.
  train::StepReport step(std::optional<double> lr = {});
  /// Updates so far.
  int64_t num_steps() const;

  /// A checkpoint in run.dir: weights, optimizer, number of updates and of samples. Where one of this update is there it is replaced.
  /// From the first save or load on it holds run.dir/.lock. Errors: UserError for a run.dir that another run or loop writes into, or with
  /// checkpoints that this session did not load; or where the disk is full, which leaves the session as it is.
  void save();
  /// Goes on from the newest checkpoint in run.dir; gradients since the last update are dropped. Returns its number of updates; 0 and no
  /// change where there is none.
  int64_t load();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::session
