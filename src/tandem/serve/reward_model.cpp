// SPDX-License-Identifier: Apache-2.0
// R sequences of a pass, T their tokens
#include "tandem/serve/reward_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/device/device.h"
#include "tandem/device/process.h"
#include "tandem/model/model_on_rank.h"
#include "tandem/serve/scored_text.h"

namespace tandem::serve {
namespace {

using Tokens = std::vector<int32_t>;

constexpr const char* kModelRule = "model";
constexpr int64_t kPassTokens = 8192;  // at most, unless one sequence has more: bounds the activations

// The tokens that all of them begin with, but each keeps one of its own.
size_t shared_tokens(std::span<const Tokens> sequences) {
  size_t shared = sequences[0].size() - 1;
  for (const Tokens& one : sequences.subspan(1)) {
    const auto begin = sequences[0].begin();
    const auto differ = std::mismatch(begin, begin + static_cast<ptrdiff_t>(std::min(shared, one.size() - 1)), one.begin()).first;
    shared = static_cast<size_t>(differ - begin);
  }
  return shared;
}

at::Tensor tensor_of(const std::vector<int64_t>& values) {
  at::Tensor t = at::empty({std::ssize(values)}, at::kLong);
  std::copy(values.begin(), values.end(), t.data_ptr<int64_t>());
  return t;
}

// Sequences end to end; what they share goes through the model once. rows_R are their last tokens.
struct ScorePass {
  model::TokenBatch tokens;
  model::kernel::Trees trees;
};

ScorePass pack(std::span<const Tokens> sequences, size_t stem) {
  std::vector<int64_t> ids, positions, last;
  model::kernel::Trees trees;
  const auto append = [&](const Tokens& from, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) ids.push_back(from[i]), positions.push_back(static_cast<int64_t>(i));
  };
  const bool shares = stem > 0 && sequences.size() > 1;
  if (shares) {
    append(sequences[0], 0, stem);
    trees.push_back({0, static_cast<int64_t>(stem), {}});
  }
  for (const Tokens& one : sequences) {
    if (!shares) trees.push_back({std::ssize(ids), std::ssize(one), {}});
    else trees[0].branches.push_back(static_cast<int64_t>(one.size() - stem));
    append(one, shares ? stem : 0, one.size());
    last.push_back(std::ssize(ids) - 1);
  }
  return {{tensor_of(ids), tensor_of(positions), tensor_of(last), {}, {}}, std::move(trees)};
}

// Attention as it is, until the pass is given up.
class AbandonableContext final : public model::AttentionContext {
 public:
  AbandonableContext(const model::kernel::Kernels& kernels, model::kernel::Trees trees, const std::atomic<int64_t>& num_abandoned,
                     int64_t seen)
      : packed_(kernels, std::move(trees)), num_abandoned_(num_abandoned), seen_(seen) {}
  at::Tensor attend(int64_t layer, const at::Tensor& qkv, const model::kernel::AttentionShape& shape) override {
    if (num_abandoned_ != seen_) throw UserError("reward.model", "the batch was given up", "the run is ending");
    return packed_.attend(layer, qkv, shape);
  }

 private:
  model::PackedContext packed_;
  const std::atomic<int64_t>& num_abandoned_;
  int64_t seen_;
};

}  // namespace

// One copy of the weights, however many rules score by it.
class RewardModels::Model {
 public:
  Model(const reward::Options& o, device::Arena arena, int threads)
      : dir_(o.model),
        threads_(threads),
        arena_(std::move(arena)),
        kernels_(reward_products(o, arena_.device())),
        model_(reward_model_config(dir_), {}, kernels_, {arena_, "reward_model"}),
        text_(dir_, model_.config()) {
    model_.load(dir_);
  }

  void abandon() const noexcept { ++num_abandoned_; }
  std::vector<reward::Score> score_batch(std::span<const reward::Answer> answers) const {
    if (answers.empty()) return {};
    std::vector<Tokens> sequences;  // each once: equal answers have equal scores, and a group of them gives no signal
    std::vector<size_t> sequence_of;
    std::map<Tokens, size_t> known;
    for (const reward::Answer& answer : answers) {
      Tokens tokens = text_.tokens(answer);
      const auto [place, fresh] = known.try_emplace(tokens, sequences.size());
      if (fresh) sequences.push_back(std::move(tokens));
      sequence_of.push_back(place->second);
    }
    const std::vector<double> values = this->values(sequences);
    std::vector<reward::Score> scores;
    for (const size_t i : sequence_of) scores.push_back({values[i], {{kModelRule, values[i]}}, ""});
    return scores;
  }

 private:
  std::vector<double> values(std::span<const Tokens> sequences) const {
    const device::ThreadLimit limit(threads_);
    device::backend_of(arena_.device()).use(arena_.device());
    const int64_t seen = num_abandoned_;
    const size_t stem = shared_tokens(sequences);
    std::vector<double> scores;
    for (size_t begin = 0, end = 0; begin < sequences.size(); begin = end) {
      auto tokens = static_cast<int64_t>(stem);
      for (; end < sequences.size(); ++end) {
        tokens += static_cast<int64_t>(sequences[end].size() - stem);
        if (tokens > kPassTokens && end > begin) break;
      }
      std::ranges::copy(run(sequences.subspan(begin, end - begin), stem, seen), std::back_inserter(scores));
    }
    return scores;
  }

  std::vector<double> run(std::span<const Tokens> sequences, size_t stem, int64_t seen) const {
    at::NoGradGuard off;
    const ScorePass pass = pack(sequences, stem);
    AbandonableContext context(kernels_, pass.trees, num_abandoned_, seen);
    const at::Tensor hidden_RH = model_.decoder().forward(model_.parameters(), pass.tokens, context);
    const at::Tensor scores_R1 = model_.decoder().scores(model_.parameters(), hidden_RH).cpu();
    const float* first = scores_R1.data_ptr<float>();
    return {first, first + sequences.size()};
  }

  std::string dir_;
  int threads_;
  device::Arena arena_;
  model::kernel::Kernels kernels_;
  model::ModelOnRank model_;
  ScoredText text_;
  mutable std::atomic<int64_t> num_abandoned_ = 0;
};

RewardModels::RewardModels(int threads, device::Arena arena) : threads_(threads), arena_(std::move(arena)) {}
RewardModels::~RewardModels() = default;

reward::ModelRuleMaker RewardModels::maker() {
  return [this](const reward::Options& options) -> std::unique_ptr<reward::Rule> {
    std::unique_ptr<const Model>& model = models_[{options.model, options.model_dtype}];
    if (!model) model = std::make_unique<const Model>(options, arena_, threads_);
    const auto score = [&on = *model](std::span<const reward::Answer> answers) { return on.score_batch(answers); };
    return std::make_unique<reward::Rule>(kModelRule, reward::RuleNeeds{false}, score, [&on = *model] { on.abandon(); });
  };
}

}  // namespace tandem::serve
