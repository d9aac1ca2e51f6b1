// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/weight_checksum.h"

#include <ATen/Parallel.h>

#include <atomic>
#include <iomanip>
#include <span>
#include <sstream>

#include "tandem/checkpoint/checksum.h"
#include "tandem/comm/agree.h"

namespace tandem::model {
namespace {

// The last steps of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// A sum with a factor for each element, by its place in the whole tensor: any cut of it adds up to the same.
template <class Word>
uint64_t sum_of_row(const Word* words, int64_t n, uint64_t first) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += (words[i] + uint64_t{1}) * (mix(first + static_cast<uint64_t>(i)) | 1);
  return sum;
}

uint64_t sum_of_box(const ParameterEntry& e, const at::Tensor& held) {
  checkpoint::Checksum name;
  name.update(std::as_bytes(std::span(e.parameter.name)));
  const bool flat = e.box.begin.size() == 1;
  const int64_t rows = flat ? 1 : e.box.extent(0), columns = held.numel() / std::max<int64_t>(1, rows);
  const bool half = held.element_size() == 2;
  std::atomic<uint64_t> sum = 0;
  at::parallel_for(0, rows, std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(1, columns)), [&](int64_t begin, int64_t end) {
    uint64_t mine = 0;
    for (int64_t r = begin; r < end; ++r) {
      const int64_t place = flat ? e.box.begin[0] : (e.box.begin[0] + r) * e.parameter.shape[1] + e.box.begin[1];
      const uint64_t first = name.value() + static_cast<uint64_t>(place);
      const void* row = static_cast<const std::byte*>(held.data_ptr()) + r * columns * held.element_size();
      if (half) mine += sum_of_row(static_cast<const uint16_t*>(row), columns, first);
      else mine += sum_of_row(static_cast<const uint32_t*>(row), columns, first);
    }
    sum += mine;
  });
  return sum;
}

}  // namespace

std::string weight_checksum(const ParameterTable& table, const at::Tensor& values, comm::Group& world) {
  std::vector<uint64_t> mine = {0};
  for (const ParameterEntry& e : table.entries)
    if (table.holds_first(e)) mine[0] += sum_of_box(e, table.view(values, e).cpu());
  uint64_t all = 0;
  for (uint64_t one : comm::values_of_all(world, mine)) all += one;
  std::ostringstream text;
  text << std::hex << std::setfill('0') << std::setw(16) << all;
  return text.str();
}

}  // namespace tandem::model
