// SPDX-License-Identifier: Apache-2.0
#pragma once
// What may stand where a file is expected, and is none: opening or reading it as one would wait or never end.

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "error_text.h"
#include "temporary_folder.h"

namespace tandem::test {

/// Puts a pipe without a writer, an endless device, a socket, and a folder at `path`, one after the other, and calls `open` each time.
/// Returns what did not lead to a UserError that names the path and says what stands there.
inline std::vector<std::string> opens_odd_files(const std::string& path, const std::function<void()>& open) {
  const auto socket_at = [](const std::string& at) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, at.c_str(), sizeof address.sun_path - 1);
    const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
    if (::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) std::abort();
    ::close(socket);
  };
  const std::pair<const char*, std::function<void()>> kinds[] = {
      {"it is a pipe", [&] { ::mkfifo(path.c_str(), 0600); }},
      {"it is a device", [&] { std::filesystem::create_symlink("/dev/zero", path); }},
      {"cannot be read", [&] { socket_at(path); }},
      {"Is a directory", [&] { std::filesystem::create_directory(path); }}};
  std::vector<std::string> opened;
  for (const auto& [said, make] : kinds) {
    std::filesystem::remove_all(path);
    make();
    const std::string error = error_of(open);
    if (error.find(path) == std::string::npos || error.find(said) == std::string::npos) opened.push_back(std::string(said) + ": " + error);
  }
  std::filesystem::remove_all(path);
  return opened;
}

}  // namespace tandem::test
