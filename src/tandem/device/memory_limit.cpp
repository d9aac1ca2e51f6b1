// SPDX-License-Identifier: Apache-2.0
#include "tandem/device/memory_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

namespace tandem::device {
namespace {

constexpr int64_t kLeastReserveBytes = int64_t{320} << 20;  // the allocator takes 256 MiB at a time
constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

// KiB behind a key of a file of /proc, as bytes; 0 without one.
int64_t proc_bytes(const char* path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key + ":")) continue;
    std::istringstream text(line.substr(key.size() + 1));
    int64_t kib = 0;
    text >> kib;
    return kib * 1024;
  }
  return 0;
}

// A file with one number; nothing where it says `max` or is absent.
int64_t number_in(const std::string& path) {
  std::ifstream in(path);
  int64_t number = 0;
  return in >> number ? number : kNone;
}

// The group's files in memory, which make room when it is wanted: two lines of memory.stat.
int64_t file_bytes(const std::string& path) {
  std::ifstream in(path);
  int64_t sum = 0, bytes = 0;
  for (std::string name; in >> name >> bytes;)
    if (name == "inactive_file" || name == "active_file") sum += bytes;
  return sum;
}

int64_t left_of(int64_t limit, int64_t used) { return limit == kNone || used == kNone ? kNone : std::max<int64_t>(0, limit - used); }

int64_t left_in(const std::string& folder, const char* limit, const char* used) {
  const int64_t in_use = number_in(folder + used);
  return left_of(number_in(folder + limit), in_use == kNone ? kNone : std::max<int64_t>(0, in_use - file_bytes(folder + "/memory.stat")));
}

int64_t left_under(__rlimit_resource kind, const char* used) {
  rlimit limit{};
  if (::getrlimit(kind, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kNone;
  return left_of(static_cast<int64_t>(limit.rlim_cur), proc_bytes("/proc/self/status", used));
}

}  // namespace

// The group of the process, and all above it; a container may show its own as the uppermost.
int64_t left_in_groups(std::istream& groups, const std::string& root) {
  int64_t left = kNone;
  for (std::string line; std::getline(groups, line);) {
    for (std::string path = line.substr(line.rfind(':') + 1);; path.resize(path.rfind('/'))) {
      if (path == "/") path.clear();
      left = std::min({left, left_in(root + path, "/memory.max", "/memory.current"),
                       left_in(root + "/memory" + path, "/memory.limit_in_bytes", "/memory.usage_in_bytes")});
      if (path.find('/') == std::string::npos) break;
    }
  }
  return left;
}

MemoryLimit memory_limit() {
  MemoryLimit least{proc_bytes("/proc/meminfo", "MemAvailable"), "free in this machine"};
  const auto also = [&](int64_t bytes, const char* from) {
    if (bytes < least.bytes) least = {bytes, from};
  };
  std::ifstream groups("/proc/self/cgroup");
  also(left_in_groups(groups, "/sys/fs/cgroup"), "left in the control group");
  also(left_under(RLIMIT_DATA, "VmData"), "left under ulimit -d");
  also(left_under(RLIMIT_AS, "VmSize"), "left under ulimit -v");
  least.bytes = std::max<int64_t>(0, least.bytes - std::max(kLeastReserveBytes, least.bytes / 10));
  return least;
}

}  // namespace tandem::device
