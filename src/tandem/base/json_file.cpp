// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/json_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "tandem/base/error.h"
#include "tandem/base/input/file_kind.h"
#include "tandem/base/json_depth.h"
#include "tandem/base/strings.h"

namespace tandem {
namespace {

// What stands at a path that is no regular file.
std::string kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return std::strerror(EISDIR);
  if (S_ISFIFO(mode)) return "it is a pipe";
  if (S_ISSOCK(mode)) return "it is a socket";
  return "it is a device";
}

}  // namespace

// O_NONBLOCK: the opening of a pipe does not wait for its writer. It means nothing to a regular file.
RegularFile::RegularFile(const std::string& path, const std::string& remedy)
    : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {
  struct stat info {};
  if (file_.is_open() && ::fstat(fd(), &info) == 0 && S_ISREG(info.st_mode)) return;
  throw UserError(path, "cannot be read: " + (file_.is_open() ? kind_of(info.st_mode) : std::strerror(errno)), remedy);
}

int64_t RegularFile::size_bytes() const {
  struct stat info {};
  return ::fstat(fd(), &info) == 0 ? static_cast<int64_t>(info.st_size) : 0;
}

int64_t RegularFile::read(int64_t from, std::span<char> to) const {
  int64_t done = 0;
  while (done < std::ssize(to)) {
    const ssize_t got = ::pread(fd(), to.data() + done, to.size() - static_cast<size_t>(done), from + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw UserError(path_, std::string("cannot be read to its end: ") + std::strerror(errno), "expected an intact file");
    if (got == 0) break;
    done += got;
  }
  return done;
}

// Files of /proc say that they are empty and are not, so the size is a hint alone.
std::string RegularFile::read_whole(int64_t most_bytes) const {
  const auto refuse = [&] {
    throw UserError(path_, "is larger than " + bytes_text(most_bytes), "expected the file that is meant to be here");
  };
  const int64_t expected = size_bytes();
  if (expected > most_bytes) refuse();
  std::string bytes;
  for (int64_t room = expected + 1;; room = int64_t{1} << 16) {
    const auto begin = static_cast<int64_t>(bytes.size());
    bytes.resize(static_cast<size_t>(begin + room));
    const int64_t got = read(begin, {bytes.data() + begin, static_cast<size_t>(room)});
    bytes.resize(static_cast<size_t>(begin + got));
    if (std::ssize(bytes) > most_bytes) refuse();
    if (got < room) return bytes;
  }
}

void require_regular_file(const std::string& path, const std::string& remedy) { const RegularFile file(path, remedy); }

std::string read_file(const std::string& path, int64_t most_bytes) { return RegularFile(path).read_whole(most_bytes); }

nlohmann::json read_json_object(const std::string& path) {
  const std::string bytes = read_file(path, kMostJsonFileBytes);
  if (const std::string kind = file_kind(bytes); !kind.empty()) throw UserError(path, "is " + kind, "expected a JSON object");
  if (nests_too_deep(bytes))
    throw UserError(path, "nests deeper than " + std::to_string(kMaxJsonDepth) + " levels", "expected an intact file");
  try {
    nlohmann::json json = nlohmann::json::parse(bytes);
    if (!json.is_object()) throw UserError(path, "holds no JSON object", "expected { ... }");
    return json;
  } catch (const nlohmann::json::exception& e) {
    throw UserError(path, std::string("is not JSON: ") + e.what(), "expected a JSON object");
  }
}

void check_format(const nlohmann::json& number, const std::string& path, int64_t newest) {
  if (number.is_null() || (number.is_number_integer() && number >= 1 && number <= newest)) return;
  const std::string known = newest == 1 ? "1" : "1 to " + std::to_string(newest);
  throw UserError(path, "has format " + (number.is_discarded() ? "that is no number" : number.dump()),
                  "this program reads " + known + ", and files without a number; a newer program reads it");
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
  out.close();
  if (!out) throw PeerError(path + ": cannot be written: " + std::strerror(errno));
}

}  // namespace tandem
