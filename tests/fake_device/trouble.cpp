// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_device/trouble.h"

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <sstream>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tests/fake_device/queue.h"

namespace tandem::device::fake {
namespace {

struct Trouble {
  int devices = kMostDevices, first = 0;
  bool is_found = false;
  std::string wrong;
};
constexpr auto kVariable = "TANDEM_FAKE_DEVICE";

// Of the process, as its devices are.
Trouble& trouble() {
  static Trouble one;
  return one;
}

const Trouble& trouble_as_told() {
  static const bool is_read [[maybe_unused]] = [] {
    if (const char* words = std::getenv(kVariable)) have_trouble(words, kVariable);
    return true;
  }();
  return trouble();
}

// Of `NAME=N`; none that is known, or no number: false.
bool read_number(const std::string& word, const std::map<std::string, int64_t*>& numbers) {
  const size_t equals = word.find('=');
  const auto found = numbers.find(word.substr(0, equals));
  if (found == numbers.end() || equals == std::string::npos) return false;
  const char* end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data() + equals + 1, end, *found->second);
  return error == std::errc() && stop == end && *found->second >= 0;
}

}  // namespace

int num_devices() { return trouble_as_told().devices; }
int first_of_machine() { return trouble_as_told().first; }
bool is_found_by_auto() { return trouble_as_told().is_found; }
const std::string& wrong_operator() { return trouble_as_told().wrong; }

void have_trouble(const std::string& words, const std::string& variable) {
  int64_t lost_after = 0, device = -1, mib = 0, count = kMostDevices, of_machine = 0;
  const std::map<std::string, int64_t*> numbers = {
      {"lost_after", &lost_after}, {"device", &device}, {"mib", &mib}, {"devices", &count}, {"first", &of_machine}};
  std::istringstream in(words);
  for (std::string word; std::getline(in, word, ',');) {
    if (word == "is_found") trouble().is_found = true;
    else if (word.starts_with("wrong=aten::")) trouble().wrong = word.substr(word.find('=') + 1);
    else if (!read_number(word, numbers))
      throw UserError(variable, "has '" + word + "'", "lost_after=N, device=N, mib=N, devices=N, first=N, is_found or wrong=aten::NAME");
  }
  if (count > kMostDevices) throw UserError(variable, join_text("has devices=", count), join_text("at most ", kMostDevices));
  trouble().devices = static_cast<int>(count);
  trouble().first = static_cast<int>(of_machine);
  for (int d = 0; d < kMostDevices; ++d) queue_of(d).bound(device < 0 || device == d ? lost_after : 0, mib << 20);
}

}  // namespace tandem::device::fake
