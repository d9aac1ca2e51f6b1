// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which libraries compute a run's matrix products: those an option names, those another run chose, or the fastest as measured.

#include <string>

#include "tandem/comm/group.h"
#include "tandem/model/kernel/gemm.h"

namespace tandem::runtime {

struct ProductsWanted {
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool parity = false;
  std::string option;  ///< names `asked` in errors
  std::string asked;   ///< model/kernel/gemm.h:parse_choice; empty: not asked for
  std::string known;   ///< what a run that this one goes on from chose; empty: none
};

/// The same on all ranks: ranks that compute the same tokens must choose the same experts. Collective where it measures.
/// Errors: UserError naming the option, for a text that is no choice or one this machine cannot compute, and beside parity mode.
model::kernel::Gemm products_for(const ProductsWanted& wanted, comm::Group& world);

}  // namespace tandem::runtime
