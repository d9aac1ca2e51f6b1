// SPDX-License-Identifier: Apache-2.0
#include "tandem/monitor/notices.h"

#include <utility>

#include "tandem/base/log.h"

namespace tandem::monitor {

Notices::~Notices() {
  for (const Notice& notice : waiting_) log::warning(notice.text);
}

void Notices::defer() {
  std::lock_guard lock(mutex_);
  defers_ = true;
}

void Notices::say(const std::string& kind, const std::string& text) {
  std::lock_guard lock(mutex_);
  if (said_.size() >= kMostKinds || !said_.insert(kind).second) return;
  if (defers_) waiting_.push_back({kind, text});
  else log::warning(text);
}

std::vector<Notice> Notices::take() {
  std::lock_guard lock(mutex_);
  return std::exchange(waiting_, {});
}

}  // namespace tandem::monitor
