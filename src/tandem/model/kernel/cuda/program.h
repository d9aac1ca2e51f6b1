// SPDX-License-Identifier: Apache-2.0
#pragma once
// The kernels of source.cpp, compiled for a device when they are first asked for, by the compiler that comes with libtorch (NVRTC).

#include <ATen/core/Tensor.h>

#include <initializer_list>

namespace tandem::model::kernel::cuda {

/// Text of all kernels, and the names of those that are there once for each dtype; a null ends them.
extern const char* const kSource;
extern const char* const kTemplates[];

/// Blocks of threads on the device of `like`, in its current stream; of a kernel for several dtypes, the one for that of `like`. Arguments
/// are addresses of what the kernel takes, in its order. Errors: PeerError, if it cannot be compiled or launched.
void launch(const char* name, const at::Tensor& like, int64_t num_blocks, int threads, std::initializer_list<const void*> arguments);

}  // namespace tandem::model::kernel::cuda
