// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tells libtorch how tensors on a fake device are made, copied and computed.

#include <ATen/core/Tensor.h>

namespace tandem::device::fake {

/// Once in a process, before its first tensor there and its first backward pass anywhere: libtorch counts devices then. Later calls do
/// nothing. It takes libtorch's private device type.
void register_device();

/// False where another backend has taken that type.
bool can_register();

/// The same elements, to be touched by what is queued alone.
at::Tensor host_view(const at::Tensor& tensor);

}  // namespace tandem::device::fake
