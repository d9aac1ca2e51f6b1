// SPDX-License-Identifier: Apache-2.0
#include "tandem/pull/passing_source.h"

#include <utility>

#include "tandem/base/check.h"
#include "tandem/reshard/held_weights.h"

namespace tandem::pull {
namespace {

at::ScalarType narrower(at::ScalarType a, at::ScalarType b) { return c10::elementSize(a) <= c10::elementSize(b) ? a : b; }

}  // namespace

PassingSource::PassingSource(const model::ParameterTable& table, std::vector<model::family::Parameter> which,
                             std::vector<WeightHolder> holders, const PassingOptions& options)
    : table_(table),
      options_(options),
      held_dtype_(holders.at(0).dtype),
      source_(table_.config, std::move(which), std::move(holders), options.deadline_s) {
  source_.set_part(join_text(model::to_string(table_.layout), " rank ", table_.rank));
}

// What came by sockets, others may have from here.
Fetched PassingSource::fetch(PolicyVersion version, const at::Tensor& values) {
  const at::ScalarType dtype = narrower(values.scalar_type(), held_dtype_);
  const Fetched fetched = source_.fetch(version, reshard::held_weights(table_, values, dtype), dtype);
  if (!fetched.is_whole || !source_.uses_sockets()) return fetched;
  WeightHolder own;
  if (values.scalar_type() == held_dtype_) {
    const std::string host = "tcp://" + (options_.host.empty() ? std::string("127.0.0.1") : options_.host) + ":0";
    if (!passes_on_) passes_on_.emplace(table_, held_dtype_, host);
    passes_on_->publish(values, version);
    own = {passes_on_->place(), table_.layout, table_.rank, held_dtype_};
  }
  source_.tell(version, own);
  return fetched;
}

}  // namespace tandem::pull
