// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/products.h"

#include <nlohmann/json.hpp>

#include "tandem/base/error.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/scalar.h"
#include "tandem/model/kernel/backend/brgemm.h"

namespace tandem::model {
namespace {

using kernel::Gemm, kernel::GemmChoice;

GemmChoice choice_asked_for(const ProductsWanted& w) {
  if (w.parity) throw UserError(w.option, "is '" + w.asked + "' with run.parity", "empty: parity mode has its own");
  const std::optional<GemmChoice> choice = kernel::parse_choice(w.asked);
  if (choice && can_compute(*choice, w.dtype)) return *choice;
  if (w.dtype == at::kFloat)
    throw UserError(w.option, "is '" + w.asked + "'",
                    "for float32 such as 'blas blas onednn float': blas or onednn for forward, input and weight gradient, then float");
  std::string weights = "onednn", logits = "float";
  if (kernel::half_product_available()) weights += " or blas", logits += " or half";
  if (kernel::brgemm_available()) weights += " or brgemm", logits += " or brgemm";
  throw UserError(w.option, "is '" + w.asked + "'",
                  "for bfloat16 such as 'onednn onednn onednn float': " + weights + " for the weight gradient, " + logits + " for logits");
}

// Whether the processors of all ranks have what the choice takes. Collective.
bool all_compute(const GemmChoice& choice, c10::ScalarType dtype, comm::Group& world) {
  return !comm::any_of(world, !can_compute(choice, dtype));
}

}  // namespace

void to_json(nlohmann::json& j, const Products& p) {
  j = {{"training", p.training}, {"training_dtype", p.training_dtype}, {"rollout", p.rollout}, {"rollout_dtype", p.rollout_dtype},
       {"rows", p.rows}};
}

void from_json(const nlohmann::json& j, Products& p) {
  p = {j.at("training"), j.value("training_dtype", ""), j.at("rollout"), j.value("rollout_dtype", ""), j.at("rows")};
}

std::optional<GemmChoice> known_choice(const ProductsWanted& w, comm::Group& world) {
  if (w.parity || !w.asked.empty()) return std::nullopt;
  const std::optional<GemmChoice> known = kernel::parse_choice(w.known);
  return known && all_compute(*known, w.dtype, world) ? known : std::nullopt;
}

Gemm products_for(const ProductsWanted& w, comm::Group& world) {
  if (!w.asked.empty()) return {w.dtype, choice_asked_for(w)};
  if (w.parity) return {w.dtype, true};
  if (const auto known = known_choice(w, world)) return {w.dtype, *known};
  if (world.size() == 1) return {w.dtype, false};
  GemmChoice choice;
  if (world.rank() == 0) choice = Gemm(w.dtype, false).choice();
  choice = comm::value_of_first(world, choice);
  return {w.dtype, all_compute(choice, w.dtype, world) ? choice : kernel::plain_choice(w.dtype)};
}

}  // namespace tandem::model
