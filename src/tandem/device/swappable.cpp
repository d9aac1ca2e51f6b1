// SPDX-License-Identifier: Apache-2.0
#include "tandem/device/swappable.h"

#include <algorithm>
#include <cstring>

#include "tandem/base/check.h"
#include "tandem/device/device.h"

namespace tandem::device {

Swappable::Swappable(const Home& home, int64_t num_elements, c10::ScalarType dtype)
    : region_(home.device.reserve(home.owner, {num_elements}, dtype)), home_(home) {
  TANDEM_CHECK(!home.begins_away || home.keep == Keep::kNothing, home.owner, " has no contents that could come back");
  if (!home.begins_away) region_.back();
}

Swappable::~Swappable() {
  if (!copy_.defined()) return;
  try {
    synchronize(tensor().device());  // what comes back may still be read from the copy
  } catch (const std::exception&) {  // a lost device reads nothing; who waited for it has heard
  }
}

const at::Tensor& Swappable::contents() const {
  if (is_present()) return tensor();
  TANDEM_CHECK(is_away() && home_.keep != Keep::kNothing, home_.owner, " is neither on the device nor on the host");
  return copy_;
}

std::pair<int64_t, int64_t> Swappable::chunks_of(int64_t begin, int64_t end) const {
  const int64_t width = tensor().element_size(), chunk = region_.chunk_bytes();
  return {begin * width / chunk, (end * width + chunk - 1) / chunk};
}

at::Tensor Swappable::bytes_of(const at::Tensor& tensor, int64_t chunk) const {
  const int64_t begin = chunk * region_.chunk_bytes(), all = static_cast<int64_t>(tensor.nbytes());
  return tensor.view({-1}).view(at::kByte).narrow(0, std::min(begin, all), std::clamp<int64_t>(all - begin, 0, region_.chunk_bytes()));
}

int64_t Swappable::leave(int64_t first, int64_t last) {
  int64_t copied = 0;
  if (home_.keep != Keep::kNothing && !copy_.defined() && first < last) {
    TANDEM_CHECK(home_.host, home_.owner, " has no host memory to leave for");
    copy_ = home_.host->allocate(home_.owner, tensor().sizes().vec(), tensor().scalar_type());
    pinned_ = pinned(home_.device.device(), copy_.data_ptr(), copy_.nbytes());
  }
  // A device copies all of it before any memory goes; where the device is the host, there is never more than a chunk twice.
  const bool is_queued = !tensor().is_cpu();
  for (int64_t chunk = first; chunk < last; ++chunk) {
    if (!region_.is_backed(chunk)) continue;
    if (home_.keep != Keep::kNothing && !is_copied_) {
      const at::Tensor from = bytes_of(tensor(), chunk);
      bytes_of(copy_, chunk).copy_(from, /*non_blocking=*/is_queued);
      copied += from.numel();
    }
    if (!is_queued) region_.release(chunk, chunk + 1);
  }
  if (is_queued) {
    synchronize(tensor().device());
    region_.release(first, last);
  }
  if (home_.keep == Keep::kOriginal && is_away()) is_copied_ = true;
  return copied;
}

int64_t Swappable::come_back(int64_t first, int64_t last) {
  std::vector<int64_t> missing;
  for (int64_t chunk = first; chunk < last; ++chunk)
    if (!region_.is_backed(chunk)) missing.push_back(chunk);
  try {
    region_.back(first, last);
  } catch (...) {
    for (int64_t chunk : missing) region_.release(chunk, chunk + 1);  // no zeros in place of contents
    throw;
  }
  int64_t copied = 0;
  if (home_.keep == Keep::kNothing) return 0;
  for (int64_t chunk : missing) {
    const at::Tensor from = bytes_of(copy_, chunk);
    bytes_of(tensor(), chunk).copy_(from, /*non_blocking=*/true);
    copied += from.numel();
  }
  return copied;
}

}  // namespace tandem::device
