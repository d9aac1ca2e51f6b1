// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which libraries compute a run's matrix products: those an option names, those another run had, or the fastest as measured.

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "tandem/comm/group.h"
#include "tandem/model/kernel/kernels.h"

namespace tandem::model {

/// The kernels of a run, as its checkpoints keep them: measured at each start, they may differ, and bits with them.
struct Products {
  std::string training, training_dtype;  ///< model/kernel/product.h:to_text, and the dtype it was chosen for
  std::string rollout, rollout_dtype;
  std::string rows;                      ///< instructions of the row kernels; empty: nothing is known
};
void to_json(nlohmann::json& j, const Products& products);
/// Errors: nlohmann::json::exception.
void from_json(const nlohmann::json& j, Products& products);

struct ProductsWanted {
  const kernel::Backend* backend = &kernel::cpu::backend();
  at::Device device = at::kCPU;
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool parity = false;
  std::string option;  ///< names `asked` in errors
  std::string asked;   ///< model/kernel/product.h:parse_choice; empty: not asked for
  std::string known;   ///< what a run that this one goes on from had in that dtype; empty: none
};

/// The same on all ranks: ranks that compute the same tokens must choose the same experts. The first rank measures; where another's
/// processor cannot compute what is fastest there, all take what every processor can. Collective.
/// Errors: UserError naming the option, for a text that is no choice in that dtype, and beside parity mode.
kernel::Kernels products_for(const ProductsWanted& wanted, comm::Group& world);

/// The known one where nothing else is asked for and all ranks can compute it. All ranks bring the same `known`. Collective.
std::optional<kernel::GemmChoice> known_choice(const ProductsWanted& wanted, comm::Group& world);

}  // namespace tandem::model
