// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/stream.h"

#include <algorithm>

#include "tandem/text/unicode.h"

namespace tandem::text {

std::string StreamingDetokenizer::push(int32_t id) {
  const std::string& bytes = tokenizer_->token_bytes(id);
  if (skip_special_ && tokenizer_->is_special(id)) return "";
  pending_ += bytes;
  if (at_start_ && !pending_.empty()) {
    if (tokenizer_->strips_first_space() && pending_[0] == ' ') pending_.erase(0, 1);
    at_start_ = false;
  }
  std::string out;
  size_t at = 0;
  while (at < pending_.size()) {
    const Utf8Step step = utf8_step(std::string_view(pending_).substr(at, 4));
    if (step.incomplete) break;
    append_utf8(out, step.code_point);
    at += step.length;
  }
  pending_.erase(0, at);
  return out;
}

std::string StreamingDetokenizer::finish() {
  std::string out = repair_utf8(pending_);
  pending_.clear();
  return out;
}

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) longest_ = std::max(longest_, stop.size());
}

std::optional<StopMatcher::Found> StopMatcher::feed(std::string_view text) {
  if (found_ || longest_ == 0) {
    total_bytes_ += text.size();
    return found_;
  }
  const size_t window_begin = total_bytes_ - tail_.size();
  std::string window = std::move(tail_);
  window += text;
  total_bytes_ += text.size();
  for (size_t i = 0; i < stops_.size(); ++i) {
    if (stops_[i].empty()) continue;
    const size_t at = window.find(stops_[i]);
    if (at == std::string::npos) continue;
    const Found here{window_begin + at, window_begin + at + stops_[i].size(), i};
    if (!found_ || here.end < found_->end || (here.end == found_->end && here.cut < found_->cut)) found_ = here;
  }
  tail_ = window.size() < longest_ ? window : window.substr(window.size() - (longest_ - 1));
  return found_;
}

}  // namespace tandem::text
