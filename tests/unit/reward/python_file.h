// SPDX-License-Identifier: Apache-2.0
#pragma once
// A Python file of a test, removed with it.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace tandem::reward {

class PythonFile {
 public:
  explicit PythonFile(const std::string& source) {
    std::string name = (std::filesystem::temp_directory_path() / "tandem-test-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    std::ofstream(folder_ / "rewards.py") << source;
  }
  ~PythonFile() { std::filesystem::remove_all(folder_); }
  std::string path() const { return (folder_ / "rewards.py").string(); }
  std::filesystem::path folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
};

}  // namespace tandem::reward
