// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who holds which slice: a parallel layout as a value, written "dp2,tp4". docs/architecture.md has the rank order.

#include <cstdint>
#include <string>
#include <vector>

#include "tandem/base/box.h"
#include "tandem/model/config.h"
#include "tandem/model/family/family.h"

namespace tandem::model {

/// Axes of a layout; a missing axis is 1. Ranks are numbered with tp fastest, then dp.
struct Layout {
  int dp = 1;
  int tp = 1;

  int world() const { return dp * tp; }
  int tp_rank(int rank) const { return rank % tp; }
  int dp_rank(int rank) const { return rank / tp; }
  bool operator==(const Layout&) const = default;
};

/// "" or "dp1" is one rank. Errors: UserError naming `where` and the part that is wrong; axes that Tandem knows but cannot
/// run yet (cp, pp, vpp, ep, etp) are named as such.
Layout parse_layout(const std::string& text, const std::string& where);
std::string to_string(const Layout& layout);
/// Errors: UserError if tp cannot cut this model (heads, intermediate or vocabulary size).
void check_layout(const Layout& layout, const ModelConfig& config, const std::string& where);

/// The box of `parameter` that TP rank `tp_rank` of `tp` holds.
Box box_of(const family::Parameter& parameter, const ModelConfig& config, int tp, int tp_rank);
/// Every box that a rank of the layout holds, in the order of the forward pass.
std::vector<TensorSpec> boxes_of(const ModelConfig& config, const Layout& layout, int rank);
/// kv heads that one TP rank holds, at least 1.
int64_t local_kv_heads(const ModelConfig& config, int tp);

}  // namespace tandem::model
