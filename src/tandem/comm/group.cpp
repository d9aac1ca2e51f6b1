// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/group.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

namespace tandem::comm {

std::vector<std::vector<std::byte>> all_gather_bytes(Group& group, std::span<const std::byte> mine) {
  const int size = group.size();
  at::Tensor size_1 = at::empty({1}, at::kLong);
  *size_1.mutable_data_ptr<int64_t>() = static_cast<int64_t>(mine.size());
  at::Tensor sizes_R = at::empty({size}, at::kLong);
  group.all_gather(sizes_R, size_1);
  const int64_t* sizes = sizes_R.const_data_ptr<int64_t>();
  const int64_t longest = *std::max_element(sizes, sizes + size);

  // Padded to the longest, so that one all_gather does; the strings of control traffic are short and alike.
  at::Tensor in = at::empty({longest}, at::kByte);
  at::Tensor out = at::empty({size * longest}, at::kByte);
  if (!mine.empty()) std::memcpy(in.mutable_data_ptr(), mine.data(), mine.size());
  if (static_cast<int64_t>(mine.size()) < longest)
    std::memset(static_cast<std::byte*>(in.mutable_data_ptr()) + mine.size(), 0, static_cast<size_t>(longest) - mine.size());
  group.all_gather(out, in);

  std::vector<std::vector<std::byte>> all(static_cast<size_t>(size));
  const auto* bytes = static_cast<const std::byte*>(out.const_data_ptr());
  for (int r = 0; r < size; ++r) all[static_cast<size_t>(r)].assign(bytes + r * longest, bytes + r * longest + sizes[r]);
  return all;
}

}  // namespace tandem::comm
