// SPDX-License-Identifier: Apache-2.0
#include "tandem/generate/response_text.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "tandem/base/error.h"
#include "tandem/text/stream.h"

namespace tandem::generate {
namespace {

// The text of a response as it grows, and what ends it.
struct GrowingText {
  text::StreamingDetokenizer stream;
  text::StopMatcher stops;
};

std::string decoded(const text::Tokenizer& tokenizer, std::span<const int32_t> ids) {
  std::vector<int32_t> known(ids.begin(), ids.end());
  std::erase_if(known, [&](int32_t id) { return id < 0 || id >= tokenizer.vocab_size(); });
  return tokenizer.decode(known, true);
}

rollout::MakeTokenListener listeners_for(const text::Tokenizer* tokenizer, std::vector<std::string> stops) {
  std::erase(stops, "");
  if (stops.empty()) return {};
  if (!tokenizer) throw UserError("stop", "the model directory has no tokenizer", "token ids need no stop text; use the model's eos");
  return [tokenizer, stops] {
    const auto text = std::make_shared<GrowingText>(text::StreamingDetokenizer(*tokenizer, true), text::StopMatcher(stops));
    return [text](int32_t token) { return !text->stops.feed(text->stream.push(token)); };
  };
}

}  // namespace

std::vector<std::string> stop_texts(std::vector<std::string> asked, const rollout::Sampling& sampling, const model::ModelConfig& model,
                                    const text::Tokenizer* tokenizer) {
  if (tokenizer && !sampling.ignore_eos) asked.insert(asked.end(), model.stop_strings.begin(), model.stop_strings.end());
  return asked;
}

std::vector<int32_t> stop_ids(const std::vector<int32_t>& model_eos, const text::Tokenizer* tokenizer) {
  std::vector<int32_t> ids = model_eos;
  if (tokenizer && tokenizer->eos_id() && std::ranges::find(ids, *tokenizer->eos_id()) == ids.end()) ids.push_back(*tokenizer->eos_id());
  return ids;
}

ResponseEnds::ResponseEnds(std::vector<std::string> asked, const rollout::Sampling& sampling, const model::ModelConfig& model,
                           const text::Tokenizer* tokenizer)
    : tokenizer_(tokenizer),
      num_ids_(tokenizer ? std::min(tokenizer->vocab_size(), model.vocab_size) : 0),
      ids_(stop_ids(model.eos_ids, tokenizer)),
      texts_(stop_texts(std::move(asked), sampling, model, tokenizer)),
      listeners_(listeners_for(tokenizer, texts_)) {}

std::string ResponseEnds::text_of(std::span<const int32_t> ids) const {
  std::string text = decoded(*tokenizer_, ids);
  text::StopMatcher matcher(texts_);
  if (const auto found = matcher.feed(text)) text.resize(found->cut);
  return text;
}

void ResponseEnds::fill_text(data::Group& group) const {
  if (!tokenizer_) return;
  const auto fill = [&](data::Sample& sample) {
    const std::span<const int32_t> ids(sample.ids);
    const size_t last = data::last_turn_begin(sample);
    sample.text = (last > 0 ? decoded(*tokenizer_, ids.first(last)) : "") + text_of(ids.subspan(last));
  };
  for (data::Sample& sample : group.samples) fill(sample);
  if (group.greedy) fill(*group.greedy);
}

}  // namespace tandem::generate
