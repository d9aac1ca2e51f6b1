// SPDX-License-Identifier: Apache-2.0
#include "tandem/monitor/notices.h"

#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/log.h"

namespace tandem::monitor {
namespace {

std::string prefixed(const std::string& text) { return std::to_string(text.size()) + ":" + text; }

// The text whose length stands at `at`, which then is behind it.
std::string next_text(const std::string& bytes, size_t& at) {
  const size_t colon = bytes.find(':', at);
  TANDEM_CHECK(colon != std::string::npos, "no length at ", at, " of ", bytes.size());
  const size_t size = std::stoull(bytes.substr(at, colon - at));
  TANDEM_CHECK(size <= bytes.size() - colon - 1, "a text of ", size, " at ", at, " of ", bytes.size());
  at = colon + 1 + size;
  return bytes.substr(colon + 1, size);
}

}  // namespace

std::string to_bytes(const std::vector<Notice>& notices) {
  std::string bytes;
  for (const Notice& notice : notices) bytes += prefixed(notice.kind) + prefixed(notice.text);
  return bytes;
}

std::vector<Notice> notices_of(const std::string& bytes) {
  std::vector<Notice> notices;
  for (size_t at = 0; at < bytes.size();) {
    std::string kind = next_text(bytes, at);
    notices.push_back({std::move(kind), next_text(bytes, at)});
  }
  return notices;
}

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
