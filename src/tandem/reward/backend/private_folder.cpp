// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/backend/private_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <string_view>

#include "tandem/base/error.h"
#include "tandem/reward/backend/process.h"

namespace tandem::reward {

namespace {

constexpr int64_t kTooMuch = std::numeric_limits<int64_t>::max();
constexpr int kFolder = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

struct CloseFolder {
  void operator()(DIR* folder) const { closedir(folder); }
};
using Folder = std::unique_ptr<DIR, CloseFolder>;

Descriptor folder_in(int parent, const char* name) { return Descriptor(openat(parent, name, kFolder)); }

Folder entries_of(Descriptor fd) {
  Folder folder(fd.is_open() ? fdopendir(fd.number()) : nullptr);
  if (folder) fd.release();
  return folder;
}

// The next name but `.` and `..`; null at the end.
const char* next_name(const Folder& folder) {
  while (const dirent* entry = readdir(folder.get()))
    if (std::string_view name = entry->d_name; name != "." && name != "..") return entry->d_name;
  return nullptr;
}

struct Emptied {
  std::string below;  // a folder that is not empty; "" if there was none
  bool stuck = false;  // something cannot be removed
};

// Removes what can be removed at once from an open folder, up to the first folder that holds something.
Emptied empty_out(const Descriptor& fd) {
  Emptied done;
  const Folder folder = entries_of(folder_in(fd.number(), "."));
  while (const char* name = folder ? next_name(folder) : nullptr) {
    if (unlinkat(fd.number(), name, 0) == 0 || unlinkat(fd.number(), name, AT_REMOVEDIR) == 0) continue;
    if (errno == ENOTEMPTY || errno == EEXIST) {
      done.below = name;
      return done;
    }
    done.stuck = true;
  }
  return done;
}

bool is_same(const Descriptor& a, const struct stat& b) {
  struct stat at {};
  return fstat(a.number(), &at) == 0 && at.st_dev == b.st_dev && at.st_ino == b.st_ino;
}

int64_t size_of(const struct stat& at) { return std::max<int64_t>(at.st_size, int64_t{512} * at.st_blocks); }

int64_t bytes_below(Descriptor fd, int64_t depth, int64_t& num_names) {
  const Folder folder = entries_of(std::move(fd));
  int64_t bytes = 0;
  while (const char* name = folder ? next_name(folder) : nullptr) {
    struct stat at {};
    if (++num_names > kMaxFiles) return kTooMuch;
    if (fstatat(dirfd(folder.get()), name, &at, AT_SYMLINK_NOFOLLOW) != 0) continue;  // gone already
    int64_t here = S_ISDIR(at.st_mode) ? 0 : size_of(at);
    if (S_ISDIR(at.st_mode))
      here = depth == kMaxFolderDepth ? kTooMuch : bytes_below(folder_in(dirfd(folder.get()), name), depth + 1, num_names);
    if (here > kTooMuch - bytes) return kTooMuch;
    bytes += here;
  }
  return bytes;
}

}  // namespace

PrivateFolder::PrivateFolder() : path_((std::filesystem::temp_directory_path() / "tandem-code-XXXXXX").string()) {
  if (!mkdtemp(path_.data())) throw PeerError("sandbox: no folder " + path_ + ": " + std::strerror(errno));
}

PrivateFolder::~PrivateFolder() { remove_tree(path_); }

bool remove_tree(const std::string& path) {
  if (rmdir(path.c_str()) == 0) return true;
  Descriptor at(open(path.c_str(), kFolder));
  struct stat top {};
  if (!at.is_open() || fstat(at.number(), &top) != 0) return false;
  for (;;) {
    const Emptied done = empty_out(at);
    if (!done.below.empty()) {
      const char* name = done.below.c_str();
      Descriptor below = folder_in(at.number(), name);
      if (!below.is_open() && fchmodat(at.number(), name, 0700, 0) == 0) below = folder_in(at.number(), name);
      if (!below.is_open()) return false;
      at = std::move(below);
    } else if (is_same(at, top)) {
      return rmdir(path.c_str()) == 0;
    } else if (done.stuck) {
      return false;  // it would be found again for ever
    } else {
      at = folder_in(at.number(), "..");
      if (!at.is_open()) return false;
    }
  }
}

int64_t folder_bytes(const std::string& path) {
  int64_t num_names = 0;
  return bytes_below(Descriptor(open(path.c_str(), kFolder)), 0, num_names);
}

int64_t unnamed_bytes(pid_t process) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd";
  const Folder folder = entries_of(Descriptor(open(path.c_str(), kFolder)));
  int64_t bytes = 0;
  while (const char* name = folder ? next_name(folder) : nullptr) {
    struct stat at {};
    if (fstatat(dirfd(folder.get()), name, &at, 0) == 0 && S_ISREG(at.st_mode) && at.st_nlink == 0) bytes += size_of(at);
  }
  return bytes;
}

}  // namespace tandem::reward
