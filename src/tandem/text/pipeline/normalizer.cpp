// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/pipeline/normalizer.h"

#include <algorithm>

#include "tandem/base/error.h"
#include "tandem/text/unicode.h"

namespace tandem::text {
namespace {

void check_room(size_t bytes, size_t most) {
  if (bytes > most)
    throw UserError("tokenizer.json: normalizer", "makes a text larger than " + std::to_string(most) + " bytes, " +
                    std::to_string(kMostGrowth) + " times what it was", "expected steps that let a text be about as long as it is");
}

std::string replaced(std::string_view text, const Regex& pattern, std::string_view content, size_t most) {
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  size_t begin = 0;
  pattern.each_match(text, [&](size_t from, size_t to) {
    out.append(text.substr(begin, from - begin));
    check_room(out.size() + content.size(), most);
    out += content;
    begin = to;
  });
  out += text.substr(begin);
  return out;
}

}  // namespace

Normalizer::Normalizer(std::vector<NormalizeStep> steps) : steps_(std::move(steps)) {
  for (const NormalizeStep& step : steps_)
    patterns_.push_back(step.kind == NormalizeStep::Kind::kReplace ? std::optional(compile(step.pattern)) : std::nullopt);
}

std::string_view Normalizer::apply(std::string_view text, std::string& store) const {
  const size_t most = std::max(kMostGrowth * text.size(), kLeastRoom_bytes);
  for (size_t i = 0; i < steps_.size() && !text.empty(); ++i) {
    const NormalizeStep& step = steps_[i];
    if (step.kind == NormalizeStep::Kind::kPrepend) check_room(step.content.size() + text.size(), most);
    if (step.kind == NormalizeStep::Kind::kNfc && is_nfc(text)) continue;
    std::string next = step.kind == NormalizeStep::Kind::kNfc       ? nfc(text)
                       : step.kind == NormalizeStep::Kind::kPrepend ? step.content + std::string(text)
                                                                    : replaced(text, *patterns_[i], step.content, most);
    check_room(next.size(), most);
    store = std::move(next);
    text = store;
  }
  return text;
}

}  // namespace tandem::text
