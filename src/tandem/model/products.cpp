// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/products.h"

#include <nlohmann/json.hpp>

#include "tandem/base/error.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/scalar.h"

namespace tandem::model {
namespace {

using kernel::Kernels, kernel::GemmChoice;

GemmChoice choice_asked_for(const ProductsWanted& w) {
  if (w.parity) throw UserError(w.option, "is '" + w.asked + "' with run.parity", "empty: parity mode has its own");
  if (!w.backend->product.choices)
    throw UserError(w.option, "is '" + w.asked + "', and the products of " + w.backend->name + " are always the same", "empty");
  const std::optional<GemmChoice> choice = kernel::parse_choice(w.asked);
  if (choice && w.backend->product.can_compute(*choice, w.dtype)) return *choice;
  throw UserError(w.option, "is '" + w.asked + "'", w.backend->product.choices(w.dtype));
}

// Whether the processors of all ranks have what the choice takes. Collective.
bool all_compute(const GemmChoice& choice, const ProductsWanted& w, comm::Group& world) {
  return !comm::any_of(world, !w.backend->product.can_compute(choice, w.dtype));
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
  return known && all_compute(*known, w, world) ? known : std::nullopt;
}

Kernels products_for(const ProductsWanted& w, comm::Group& world) {
  if (!w.asked.empty()) return {*w.backend, w.dtype, choice_asked_for(w), w.device};
  if (w.parity) return {*w.backend, w.dtype, true, w.device};
  if (const auto known = known_choice(w, world)) return {*w.backend, w.dtype, *known, w.device};
  if (world.size() == 1) return {*w.backend, w.dtype, false, w.device};
  GemmChoice choice;
  if (world.rank() == 0) choice = Kernels(*w.backend, w.dtype, false, w.device).choice();
  choice = comm::value_of_first(world, choice);
  return {*w.backend, w.dtype, all_compute(choice, w, world) ? choice : w.backend->product.plain_choice(w.dtype), w.device};
}

}  // namespace tandem::model
