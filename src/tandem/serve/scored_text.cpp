// SPDX-License-Identifier: Apache-2.0
#include "tandem/serve/scored_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tandem/base/error.h"
#include "tandem/base/input/exact_json.h"
#include "tandem/base/log.h"
#include "tandem/model/model_on_rank.h"
#include "tandem/text/unicode.h"

namespace tandem::serve {
namespace {

using TokenIds = std::vector<int32_t>;

}  // namespace

model::ModelConfig reward_model_config(const std::string& dir) {
  if (dir.empty()) throw UserError("reward.model", "is empty", "the directory of a reward model");
  const model::ModelConfig config = model::read_config(dir, model::ModelUse::kScores);
  if (config.num_labels != 1)
    throw UserError(dir + "/config.json", join_text("has ", config.num_labels, " labels"), "one, whose score is the reward");
  if (!text::Tokenizer::present_in(dir)) throw UserError(dir, "has no tokenizer", "a directory with tokenizer.json or vocab.json");
  return config;
}

// Nothing is measured: what a group is scored must not depend on what else ran when the program started.
model::kernel::Kernels reward_products(const reward::Options& options, at::Device device) {
  using model::kernel::Library;
  const c10::ScalarType dtype = model::dtype_of(options.model_dtype, "reward.model_dtype");
  const model::kernel::Backend& backend = model::kernel::backend_named("auto", device, "reward.model");
  const model::kernel::GemmChoice onednn{Library::kOneDnn, Library::kOneDnn, Library::kOneDnn};
  return {backend, dtype, backend.product.can_compute(onednn, dtype) ? onednn : model::kernel::GemmChoice{}, device};
}

ScoredText::ScoredText(std::string dir, const model::ModelConfig& config)
    : dir_(std::move(dir)), config_(config), tokenizer_(text::Tokenizer::load(dir_)) {
  if (text::ChatTemplate::present_in(dir_)) chat_ = text::ChatTemplate::load(dir_);
}

// What the model reads, up to the token whose score counts: the last one that is no padding, as transformers has it.
TokenIds ScoredText::tokens(const reward::Answer& answer) const {
  TokenIds ids = whole(answer);
  if (ids.empty()) throw UserError("reward.model " + dir_, "is asked about a text without a token", "a prompt or a response");
  const int64_t vocabulary = config_.vocab_size;
  if (const int32_t top = *std::ranges::max_element(ids); top >= vocabulary)
    throw UserError("reward.model " + dir_, join_text("its tokenizer gives token ", top),
                    join_text("ids below its vocab_size, ", vocabulary));
  while (ids.size() > 1 && ids.back() == config_.pad_id) ids.pop_back();
  const int64_t context = config_.max_positions, cut = std::ssize(ids) - context;
  if (cut <= 0) return ids;
  ids.erase(ids.begin(), ids.begin() + cut);
  const int64_t count = ++num_cut_;
  if ((count & (count - 1)) == 0)
    log::warning("reward.model ", dir_, ": ", count, " conversations so far were longer than its context; their last ", context,
                 " tokens were scored");
  return ids;
}

TokenIds ScoredText::whole(const reward::Answer& answer) const {
  if (answer.messages.empty() || !chat_) {
    if (answer.prompt.empty() && !answer.messages.empty())
      throw UserError("reward.model " + dir_, "has no chat template, and the prompt is a list of messages", "a prompt that is a text");
    return tokenizer_.encode(text::repair_utf8(answer.prompt) + text::repair_utf8(answer.response));
  }
  text::Conversation talk = text::Conversation::from_json(parse_exact(answer.messages).value, "reward.model " + dir_);
  talk.messages.push_back({{"role", "assistant"}, {"content", text::repair_utf8(answer.response)}});
  talk.add_generation_prompt = false;
  return text::encode_rendered(tokenizer_, chat_->render(talk));
}

}  // namespace tandem::serve
