// SPDX-License-Identifier: Apache-2.0
#pragma once
// A model opened for use alone: what `tandem generate`, `logprobs` and `eval` call.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tandem/data/options.h"
#include "tandem/data/sample.h"
#include "tandem/reward/options.h"
#include "tandem/rollout/options.h"
#include "tandem/serve/answers.h"
#include "tandem/text/tokenizer.h"

namespace tandem::serve {

struct InferenceOptions {
  std::string model;                 ///< Hugging Face directory; a tokenizer is needed only for text
  std::string device = "auto";
  std::string dtype = "float32";
  std::string kernels = "auto";
  int64_t threads = 0;               ///< 0 takes every core
  bool parity = false;
  int64_t seed = 0;
  rollout::Options engine;
};

struct GenerateOptions {
  rollout::Sampling sampling;
  int64_t n = 1;                     ///< completions per prompt
  std::vector<std::string> stop;
  std::shared_ptr<const generate::Environment> environment = {};  ///< null: an answer is one turn
};

/// The weights are read for the first answer or score, or by load(): what is wrong with the input is said before.
/// Threads    one.
/// Errors     UserError for a directory, token or prompt that cannot be used, naming it.
class Inference {
 public:
  /// Reads config.json and the tokenizer, and takes the device.
  explicit Inference(const InferenceOptions& options);
  ~Inference();

  /// Reads the weights, unless they are there.
  void load();
  /// Null if the directory has no tokenizer.
  const text::Tokenizer* tokenizer() const;
  /// Answers each prompt; `prompt.ids` must be filled. `graded` gets the groups in input order, each as soon as it and those
  /// before it are done; their samples' text is filled where there is a tokenizer. Without a rule they have no score: answers.h.
  Graded answer(std::vector<data::Prompt> prompts, const GenerateOptions& options, const Grading& grading,
                const std::function<void(const data::Group&)>& graded);
  /// Answers one prompt by an engine that stays, so that what later prompts begin with is found in its cache. `goes_on` hears of each
  /// token as it comes; false ends the answer with it. Errors: UserError for a prompt that leaves no room for the new tokens.
  data::Sample answer_one(std::vector<int32_t> prompt, const GenerateOptions& options, const std::function<bool(int32_t)>& goes_on);
  /// The model's context.
  int64_t max_positions() const;
  /// Of its table of embeddings; a tokenizer may have fewer.
  int64_t vocab_size() const;
  /// Tokens that a prompt and its answer may have together there.
  int64_t context_tokens();
  /// log p(ids[i] given ids[0..i-1]) for i >= 1, in fp32; temperature 0 counts as 1.
  std::vector<float> logprobs(std::span<const int32_t> ids, double temperature);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct EvalRequest {
  InferenceOptions inference;
  data::Options data;                ///< `eval` names the file
  reward::Options reward;
  GenerateOptions generate;
  rollout::EpisodeOptions episode;
  double right_at = 0.5;
};
/// Answers and grades every problem; `emit` gets each group in order with scores filled.
EvalSummary evaluate(const EvalRequest& request, const std::function<void(const data::Group&)>& emit);

}  // namespace tandem::serve
