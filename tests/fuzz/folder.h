// SPDX-License-Identifier: Apache-2.0
#pragma once
// What reads files by their paths needs files: a folder of this process, in memory where the system has /dev/shm.

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <unistd.h>

namespace tandem::fuzz {

/// Removed with everything in it when the process ends.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : "/tmp") + std::string("/tandem_fuzz_XXXXXX");
    if (!::mkdtemp(name.data())) std::abort();
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  /// Writes the file anew; returns its path.
  std::string write(const std::string& name, std::string_view bytes) const {
    const std::string path = path_ + "/" + name;
    FILE* file = std::fopen(path.c_str(), "wb");
    if (!file || std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size()) std::abort();
    std::fclose(file);
    return path;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Takes the bytes up to the next byte 0, or all, off the front.
inline std::string_view take_part(std::string_view& input) {
  const size_t end = std::min(input.find('\0'), input.size());
  const std::string_view part = input.substr(0, end);
  input.remove_prefix(std::min(end + 1, input.size()));
  return part;
}

}  // namespace tandem::fuzz
