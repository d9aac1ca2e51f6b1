// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/reduce.h"

#include <c10/util/BFloat16.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "tandem/base/check.h"

namespace tandem::comm {
namespace {

// Small enough for the first-level cache beside one source block.
constexpr int64_t kBlock = 2048;

template <class T, class Sum>
void reduce(std::span<const void* const> sources, std::span<void* const> outs, int64_t count, ReduceOp op) {
  std::array<Sum, kBlock> sums;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    const T* first = static_cast<const T*>(sources[0]) + begin;
    for (int64_t i = 0; i < n; ++i) sums[i] = static_cast<Sum>(first[i]);
    for (const void* source : sources.subspan(1)) {
      const T* in = static_cast<const T*>(source) + begin;
      if (op == ReduceOp::kSum) {
        for (int64_t i = 0; i < n; ++i) sums[i] += static_cast<Sum>(in[i]);
      } else {
        // A NaN of any rank must reach all ranks: `!(a >= b)` is true when either is NaN, and NaN then stays.
        for (int64_t i = 0; i < n; ++i) {
          const Sum x = static_cast<Sum>(in[i]);
          if (sums[i] == sums[i] && !(sums[i] >= x)) sums[i] = x;
        }
      }
    }
    T* result = static_cast<T*>(outs[0]) + begin;
    for (int64_t i = 0; i < n; ++i) result[i] = static_cast<T>(sums[i]);
    for (void* out : outs.subspan(1)) std::memcpy(static_cast<T*>(out) + begin, result, static_cast<size_t>(n) * sizeof(T));
  }
}

}  // namespace

Slice slice_of(int64_t count, int rank, int size) {
  // 16 elements are a cache line of float32: ranks do not write into one line, and small tensors go to few ranks.
  const int64_t lines = (count + 15) / 16;
  return {std::min(count, lines * rank / size * 16), std::min(count, lines * (rank + 1) / size * 16)};
}

void reduce_ordered(std::span<const void* const> sources, std::span<void* const> outs, int64_t count, at::ScalarType dtype, ReduceOp op) {
  switch (dtype) {
    case at::kFloat: return reduce<float, float>(sources, outs, count, op);
    case at::kDouble: return reduce<double, double>(sources, outs, count, op);
    case at::kBFloat16: return reduce<c10::BFloat16, float>(sources, outs, count, op);
    case at::kLong: return reduce<int64_t, int64_t>(sources, outs, count, op);
    default: TANDEM_CHECK(false, "reduction of dtype ", c10::toString(dtype));
  }
}

void check_movable(const at::Tensor& tensor, at::Device device, const char* op) {
  TANDEM_CHECK(tensor.defined() && tensor.is_contiguous() && tensor.device() == device, op, " needs a contiguous tensor on ", device);
}

}  // namespace tandem::comm
