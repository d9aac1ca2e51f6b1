// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/stream.h"

#include <algorithm>

namespace tandem::text {

std::string StreamingDetokenizer::push(int32_t id) {
  const std::string& bytes = at_start_ ? tokenizer_->first_token_bytes(id) : tokenizer_->token_bytes(id);
  if (skip_special_ && tokenizer_->is_special(id)) return "";
  at_start_ = false;
  std::string out;
  joiner_.add(bytes, tokenizer_->is_byte(id), out);
  return out;
}

std::string StreamingDetokenizer::finish() {
  std::string out;
  joiner_.finish(out);
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
