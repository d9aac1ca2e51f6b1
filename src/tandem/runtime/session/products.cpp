// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/session/products.h"

#include <ATen/ops/zeros.h>

#include <cstring>
#include <optional>
#include <type_traits>

#include "tandem/base/error.h"

namespace tandem::runtime {
namespace {

using model::kernel::Gemm, model::kernel::GemmChoice;

GemmChoice choice_asked_for(const ProductsWanted& w) {
  if (w.parity) throw UserError(w.option, "is '" + w.asked + "' with run.parity", "empty: parity mode has its own");
  const std::optional<GemmChoice> choice = model::kernel::parse_choice(w.asked);
  if (!choice)
    throw UserError(w.option, "is '" + w.asked + "'",
                    "four words, such as 'blas blas onednn float': blas or onednn for forward, input gradient and weight gradient, half or "
                    "float for bfloat16 logits");
  if (!model::kernel::can_compute(*choice, w.dtype))
    throw UserError(w.option, "is '" + w.asked + "', and this libtorch has no BLAS for bfloat16", "'onednn onednn onednn float'");
  return *choice;
}

}  // namespace

Gemm products_for(const ProductsWanted& w, comm::Group& world) {
  if (!w.asked.empty()) return {w.dtype, choice_asked_for(w)};
  if (w.parity) return {w.dtype, true};
  if (const auto known = model::kernel::parse_choice(w.known)) return {w.dtype, *known};
  if (world.size() == 1) return {w.dtype, false};
  GemmChoice choice;
  static_assert(std::is_trivially_copyable_v<GemmChoice>);
  if (world.rank() == 0) choice = Gemm(w.dtype, false).choice();
  at::Tensor bytes = at::zeros({static_cast<int64_t>(sizeof choice)}, at::kByte);
  std::memcpy(bytes.data_ptr(), &choice, sizeof choice);
  world.broadcast(bytes, 0);
  std::memcpy(&choice, bytes.data_ptr(), sizeof choice);
  return {w.dtype, choice};
}

}  // namespace tandem::runtime
