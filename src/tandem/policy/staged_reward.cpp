// SPDX-License-Identifier: Apache-2.0
#include "tandem/policy/staged_reward.h"

#include "tandem/model/layout.h"
#include "tandem/train/trainer.h"

namespace tandem::policy {
namespace {

model::ModelConfig config_fitting(const std::string& dir, const model::Layout& layout) {
  model::ModelConfig config = serve::reward_model_config(dir);
  model::check_layout(layout, config, model::Use::kTraining, "reward.model " + dir + " under parallel.train_layout");
  return config;
}

}  // namespace

StagedReward::StagedReward(const reward::Options& options, const model::RankPlace& place, device::Arena& device, device::Arena& host)
    : kernels_(serve::reward_products(options, device.device())),
      model_(config_fitting(options.model, place.layout), place, kernels_,
             device::Home{device, "reward_model", &host, device::Keep::kOriginal}),
      text_(options.model, model_.config()) {
  model_.load(options.model);
}

std::vector<std::vector<int32_t>> StagedReward::tokens(std::span<const reward::Answer> answers) const {
  std::vector<std::vector<int32_t>> texts;
  for (const reward::Answer& answer : answers) texts.push_back(text_.tokens(answer));
  return texts;
}

std::vector<std::vector<float>> StagedReward::score(std::span<const std::vector<int32_t>> texts, int64_t budget_tokens) const {
  // A row's value stands before its response: here one token that is never read.
  static constexpr int32_t kUnread = 0;
  std::vector<train::Row> rows(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) rows[i].prompt = texts[i], rows[i].response = {&kUnread, 1};
  return train::token_values(model_.decoder(), model_.parameters(), rows, budget_tokens);
}

}  // namespace tandem::policy
