// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/weight_checksum.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <atomic>
#include <iomanip>
#include <map>
#include <span>
#include <sstream>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/file/checksum.h"
#include "tandem/comm/agree.h"

namespace tandem::model {
namespace {

constexpr uint64_t kFirstFactor = 0xBF58476D1CE4E5B9ull, kSecondFactor = 0x94D049BB133111EBull;
constexpr int64_t kSliceElements = int64_t{1} << 22;  // of int64 temporaries on a device: 32 MiB each

// The last steps of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * kFirstFactor;
  x = (x ^ (x >> 27)) * kSecondFactor;
  return x ^ (x >> 31);
}

// The same of int64 elements, in place. at:: shifts are arithmetic.
void mix(at::Tensor& x) {
  const auto xor_shifted = [&](int64_t by) { x.bitwise_xor_(x.bitwise_right_shift(by).bitwise_and_((int64_t{1} << (64 - by)) - 1)); };
  xor_shifted(30), x.mul_(static_cast<int64_t>(kFirstFactor));
  xor_shifted(27), x.mul_(static_cast<int64_t>(kSecondFactor));
  xor_shifted(31);
}

// A sum with a factor for each element, by its place in the whole tensor: any cut of it adds up to the same.
template <class Word>
uint64_t sum_of_row(const Word* words, int64_t n, uint64_t first) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += (words[i] + uint64_t{1}) * (mix(first + static_cast<uint64_t>(i)) | 1);
  return sum;
}

// A box as rows of one piece each; places of elements count from `first`.
struct Rows {
  int64_t rows, columns;
  uint64_t first;
  uint64_t stride;  // from a row's place to that of the next
};

Rows rows_of(const ParameterEntry& e, const at::Tensor& held) {
  Checksum name;
  name.update(std::as_bytes(std::span(e.parameter.name)));
  const bool flat = e.box.begin.size() == 1;
  const int64_t rows = flat ? 1 : e.box.extent(0), stride = flat ? 0 : e.parameter.shape[1];
  const int64_t place = flat ? e.box.begin[0] : e.box.begin[0] * stride + e.box.begin[1];
  return {rows, held.numel() / std::max<int64_t>(1, rows), name.value() + static_cast<uint64_t>(place), static_cast<uint64_t>(stride)};
}

uint64_t sum_of_box(const ParameterEntry& e, const at::Tensor& held) {
  const Rows box = rows_of(e, held);
  const bool half = held.element_size() == 2;
  std::atomic<uint64_t> sum = 0;
  at::parallel_for(0, box.rows, std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(1, box.columns)), [&](int64_t begin, int64_t end) {
    uint64_t mine = 0;
    for (int64_t r = begin; r < end; ++r) {
      const uint64_t first = box.first + static_cast<uint64_t>(r) * box.stride;
      const void* row = static_cast<const std::byte*>(held.data_ptr()) + r * box.columns * held.element_size();
      if (half) mine += sum_of_row(static_cast<const uint16_t*>(row), box.columns, first);
      else mine += sum_of_row(static_cast<const uint32_t*>(row), box.columns, first);
    }
    sum += mine;
  });
  return sum;
}

// Of a tensor's name and a box of it.
uint64_t number_of(const ParameterEntry& e) {
  Checksum number;
  number.update(std::as_bytes(std::span(e.parameter.name)));
  number.update(std::as_bytes(std::span(e.box.begin)));
  number.update(std::as_bytes(std::span(e.box.end)));
  return number.value();
}

}  // namespace

uint64_t sum_by_operators(const ParameterEntry& e, const at::Tensor& held) {
  const Rows box = rows_of(e, held);
  const bool half = held.element_size() == 2;
  const at::Tensor words = held.contiguous().view(half ? at::kShort : at::kInt).view({box.rows, box.columns});
  const auto counted = [&](int64_t n, uint64_t stride) {
    return at::arange(n, words.options().dtype(at::kLong)).mul_(static_cast<int64_t>(stride));
  };
  uint64_t sum = 0;
  const int64_t slice_rows = std::max<int64_t>(1, kSliceElements / std::max<int64_t>(1, box.columns));
  for (int64_t r = 0; r < box.rows; r += slice_rows) {
    const int64_t n = std::min(slice_rows, box.rows - r);
    const uint64_t first = box.first + static_cast<uint64_t>(r) * box.stride;
    at::Tensor factors = counted(n, box.stride).add_(static_cast<int64_t>(first)).unsqueeze(1) + counted(box.columns, 1);
    mix(factors);
    const at::Tensor slice = words.narrow(0, r, n).to(at::kLong).bitwise_and_(half ? 0xFFFF : 0xFFFFFFFF).add_(1);
    sum += static_cast<uint64_t>(factors.bitwise_or_(1).mul_(slice).sum().item<int64_t>());
  }
  return sum;
}

std::vector<BoxSum> box_sums(const ParameterTable& table, const at::Tensor& values) {
  std::vector<BoxSum> sums;
  for (const ParameterEntry& e : table.entries) {
    const at::Tensor held = table.view(values, e);
    sums.push_back({number_of(e), held.is_cpu() ? sum_of_box(e, held) : sum_by_operators(e, held)});
  }
  return sums;
}

uint64_t sum_of_all(comm::Group& ranks, const std::vector<BoxSum>& mine, const std::string& what) {
  struct Held {
    BoxSum sum;
    int64_t rank;
  };
  std::vector<Held> held;
  for (const BoxSum& sum : mine) held.push_back({sum, ranks.rank()});
  std::map<uint64_t, Held> boxes;
  uint64_t all = 0;
  for (const Held& each : comm::values_of_all(ranks, held)) {
    const auto [first, is_new] = boxes.try_emplace(each.sum.box, each);
    if (is_new) all += each.sum.sum;
    else if (first->second.sum.sum != each.sum.sum)
      throw PeerError(join_text("rank ", each.rank, " holds other bits of ", what, " than rank ", first->second.rank,
                                ": its memory, or a transfer to it, is faulty"));
  }
  return all;
}

std::string weight_checksum(const ParameterTable& table, const at::Tensor& values, comm::Group& world) {
  const uint64_t all = sum_of_all(world, box_sums(table, values), "the weights that are loaded");
  std::ostringstream text;
  text << std::hex << std::setfill('0') << std::setw(16) << all;
  return text.str();
}

}  // namespace tandem::model
