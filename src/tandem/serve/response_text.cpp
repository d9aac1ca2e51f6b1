// SPDX-License-Identifier: Apache-2.0
#include "tandem/serve/response_text.h"

#include <algorithm>

#include "tandem/base/error.h"
#include "tandem/text/stream.h"

namespace tandem::serve {
namespace {

class TextStop final : public rollout::StopMatcher {
 public:
  TextStop(const text::Tokenizer& tokenizer, std::vector<std::string> stops) : stream_(tokenizer, true), matcher_(std::move(stops)) {}
  bool stops_after(int32_t token) override { return matcher_.feed(stream_.push(token)).has_value(); }

 private:
  text::StreamingDetokenizer stream_;
  text::StopMatcher matcher_;
};

}  // namespace

rollout::StopMatcherFactory stop_matchers(const text::Tokenizer* tokenizer, std::vector<std::string> stops) {
  std::erase(stops, "");
  if (stops.empty()) return {};
  if (!tokenizer) throw UserError("stop", "the model directory has no tokenizer", "token ids need no stop text; use the model's eos");
  return [tokenizer, stops] { return std::make_unique<TextStop>(*tokenizer, stops); };
}

void fill_text(data::Group& group, const text::Tokenizer& tokenizer, const std::vector<std::string>& stops) {
  const auto fill = [&](data::Sample& sample) {
    std::vector<int32_t> ids = sample.ids;
    std::erase_if(ids, [&](int32_t id) { return id < 0 || id >= tokenizer.vocab_size(); });
    sample.text = tokenizer.decode(ids, true);
    text::StopMatcher matcher(stops);
    if (const auto found = matcher.feed(sample.text)) sample.text.resize(found->cut);
  };
  for (data::Sample& sample : group.samples) fill(sample);
  if (group.greedy) fill(*group.greedy);
}

std::vector<std::string> stop_texts(std::vector<std::string> asked, const rollout::Sampling& sampling, const model::ModelConfig& model,
                                    const text::Tokenizer* tokenizer) {
  if (tokenizer && !sampling.ignore_eos) asked.insert(asked.end(), model.stop_strings.begin(), model.stop_strings.end());
  return asked;
}

std::vector<int32_t> stop_ids(const std::vector<int32_t>& model_eos, const text::Tokenizer* tokenizer) {
  std::vector<int32_t> ids = model_eos;
  if (tokenizer && tokenizer->eos_id() && std::find(ids.begin(), ids.end(), *tokenizer->eos_id()) == ids.end()) ids.push_back(*tokenizer->eos_id());
  return ids;
}

}  // namespace tandem::serve
