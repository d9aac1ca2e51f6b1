// SPDX-License-Identifier: Apache-2.0
#pragma once
// The weights of a model under two layouts, as the table of a plan.

#include "tandem/model/layout.h"
#include "tandem/reshard/plan_table.h"

namespace tandem::reshard {

enum class Part { kAll, kExperts, kDense };  ///< kExperts: the routed ones

/// Of these parameters, numbered in model::flat_order; what is kept in fp32 is counted in elements of the compute dtype.
/// `to_first` is the first rank of `to`. With 0 the ranks of `from` are the first of `to`, or all of them; with their number
/// they go before `to`.
/// Errors: InternalError for any other. Layouts must fit the model (model::check_layout).
Table table_of(const model::ModelConfig& config, const std::vector<model::family::Parameter>& which, const model::Replicas& from,
               const model::Replicas& to, int to_first = 0);
/// Of a part of the model.
Table table_of(const model::ModelConfig& config, const model::Replicas& from, const model::Replicas& to, Part part = Part::kAll);

}  // namespace tandem::reshard
