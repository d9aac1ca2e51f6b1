// SPDX-License-Identifier: Apache-2.0
// tokenize_bench MODEL TEXT [REPEATS]: encodes the lines of a file, one by one in one thread. Prints one JSON object: seconds of
// each repeat after a first that warms up, megabytes per second of their median, and a hash of all ids.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/text/tokenizer.h"

namespace {

using namespace tandem::text;

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

struct Encoded {
  int64_t num_ids = 0;
  uint64_t hash = 14695981039346656037ull;  // FNV-1a, an id at a time
};

Encoded encode_all(const Tokenizer& tokenizer, const std::vector<std::string_view>& lines) {
  Encoded out;
  for (const std::string_view line : lines) {
    const std::vector<int32_t> ids = tokenizer.encode(line);
    out.num_ids += static_cast<int64_t>(ids.size());
    for (int32_t id : ids) out.hash = (out.hash ^ static_cast<uint64_t>(id)) * 1099511628211ull;
  }
  return out;
}

nlohmann::json measure(const std::string& model, const std::string& path, int repeats) {
  const Tokenizer tokenizer = Tokenizer::load(model);
  const std::string text = tandem::read_file(path);
  const std::vector<std::string_view> lines = lines_of(text);
  Encoded encoded = encode_all(tokenizer, lines);
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    encoded = encode_all(tokenizer, lines);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  return {{"seconds", seconds}, {"mb_per_s", static_cast<double>(text.size()) / sorted[sorted.size() / 2] / 1e6},
          {"num_ids", encoded.num_ids}, {"ids_hash", std::to_string(encoded.hash)}};
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) throw tandem::UserError("tokenize_bench", "needs a model and a text", "tokenize_bench MODEL TEXT [REPEATS]");
  std::cout << measure(argv[1], argv[2], argc > 3 ? std::max(1, std::atoi(argv[3])) : 5).dump() << "\n";
  return 0;
} catch (const std::exception& error) {
  std::cerr << "tokenize_bench: error: " << error.what() << "\n";
  return tandem::exit_code_of(error);
}
