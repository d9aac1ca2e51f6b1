// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bytes of a message that its sender keeps. No tensor: who counts the tensors of a thread shall not count what another frees.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstring>
#include <memory>

namespace tandem::comm {

struct MessageBytes {
  std::unique_ptr<std::byte[]> data;
  size_t size = 0;

  static MessageBytes of(const at::Tensor& tensor) {
    MessageBytes bytes{std::make_unique_for_overwrite<std::byte[]>(tensor.nbytes()), tensor.nbytes()};
    if (bytes.size > 0) std::memcpy(bytes.data.get(), tensor.const_data_ptr(), bytes.size);
    return bytes;
  }
};

}  // namespace tandem::comm
