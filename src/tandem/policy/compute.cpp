// SPDX-License-Identifier: Apache-2.0
#include "tandem/policy/compute.h"

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/base/strings.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/scalar.h"
#include "tandem/model/model_on_rank.h"
#include "tandem/train/trainer.h"

namespace tandem::policy {
namespace {

const model::kernel::Backend& backend_of(const config::RunConfig& c) {
  return model::kernel::backend_named(c.run.kernels, "run.kernels");
}

// Whether generation computes in another dtype than training.
bool has_own_dtype(const config::RunConfig& c) {
  const config::RolloutOptions& r = c.rollout;
  const bool own = !r.dtype.empty() && r.dtype != c.model.dtype;
  if (own && c.run.parity) throw UserError("rollout.dtype", r.dtype + " with run.parity", "empty, or " + c.model.dtype + " as model.dtype");
  if (!own && !r.products.empty())
    throw UserError("rollout.products", "is '" + r.products + "', and generation has the dtype of model.dtype", "model.products, for both");
  return own;
}

const std::string& rollout_dtype(const config::RunConfig& c) { return c.rollout.dtype.empty() ? c.model.dtype : c.rollout.dtype; }

// Of what is known in a dtype, what holds for this one; older checkpoints did not say.
std::string known_in(const std::string& dtype, const std::string& text, const std::string& text_dtype) {
  return text_dtype.empty() || text_dtype == dtype ? text : "";
}

model::ProductsWanted of_training(const config::RunConfig& c, const model::Products& known) {
  return {&backend_of(c), model::dtype_of(c.model.dtype, "model.dtype"), c.run.parity, "model.products", c.model.products,
          known_in(c.model.dtype, known.training, known.training_dtype)};
}

model::ProductsWanted of_rollout(const config::RunConfig& c, const model::Products& known) {
  return {&backend_of(c), model::dtype_of(rollout_dtype(c), "rollout.dtype"), c.run.parity, "rollout.products", c.rollout.products,
          known_in(rollout_dtype(c), known.rollout, known.rollout_dtype)};
}

// How rows are computed here: by instructions of which processor, and what attention multiplies bfloat16 rows by.
std::string rows_here(const config::RunConfig& c) {
  const bool half = c.model.dtype == "bfloat16" || rollout_dtype(c) == "bfloat16";
  return backend_of(c).instructions(half ? c10::kBFloat16 : c10::kFloat, c.run.parity);
}

// The products if all ranks compute rows as they were computed, else none. Collective.
model::Products kept(const model::Products& products, const config::RunConfig& c, comm::Group& world) {
  if (c.run.parity || products.rows.empty()) return {};
  const std::string here = rows_here(c);
  if (!comm::any_of(world, products.rows != here)) return products;
  if (world.rank() == 0)
    log::warning("the run goes on from one with row kernels for ", products.rows, ", here they are for ", here,
                 " or differ between ranks: the last bits of sums may differ, and products are measured anew");
  return {};
}

}  // namespace

Compute::Compute(const config::RunConfig& config, comm::Group& world, const model::Products& known)
    : Compute(Held{kept(known, config, world)}, config, world) {}

Compute::Compute(const Held& held, const config::RunConfig& config, comm::Group& world)
    : config_(config),
      world_(world),
      train_(model::products_for(of_training(config, held.products), world)),
      rollout_(has_own_dtype(config) ? model::products_for(of_rollout(config, held.products), world) : train_) {}

model::Products Compute::products() const {
  return {to_text(train_.choice()), config_.model.dtype, to_text(rollout_.choice()), rollout_dtype(config_), rows_here(config_)};
}

std::string Compute::text() const {
  const bool two = train_.dtype() != rollout_.dtype();
  std::string text = join_text("products: ", train_.description());
  if (two) text += join_text("; of rollout: ", rollout_.description());
  text += join_text("; rows ", rows_here(config_));
  if (config_.run.parity || config_.run.kernels != "native") return text;
  text += join_text("; to repeat: model.products=\"", to_text(train_.choice()), '"');
  return two ? join_text(text, " rollout.products=\"", to_text(rollout_.choice()), '"') : text;
}

void Compute::adopt(const model::Products& products) {
  const model::Products known = kept(products, config_, world_);
  if (const auto choice = model::known_choice(of_training(config_, known), world_)) train_ = {train_.backend(), train_.dtype(), *choice};
  if (rollout_.dtype() == train_.dtype()) rollout_ = train_;
  else if (const auto own = model::known_choice(of_rollout(config_, known), world_))
    rollout_ = {rollout_.backend(), rollout_.dtype(), *own};
}

void MemoryMetrics::record(monitor::Recorder& recorder, comm::Group& world) {
  for (const auto& [owner, bytes] : memory_.device.by_owner())
    if (owner != train::kActivations) recorder.set("memory/" + owner + "_bytes", static_cast<double>(bytes));
  for (const auto& [owner, bytes] : memory_.host.by_owner()) recorder.set("memory/host_" + owner + "_bytes", static_cast<double>(bytes));
  const int64_t budget = options_.device_mib << 20, peak = memory_.device.peak_bytes();
  recorder.set("memory/peak_bytes", static_cast<double>(peak));
  if (budget > 0 && peak > budget && world.rank() == 0 && !std::exchange(told_of_budget_, true))
    log::warning("memory.device_mib: activations took the device to ", bytes_text(peak), ", above ", bytes_text(budget),
                 "; a smaller train.micro_batch_tokens or train.recompute: full takes less, a smaller rollout.kv_cache_mib or "
                 "memory.offload_* leaves more to them");
  std::map<std::string, double> mine;
  for (const auto& [name, value] : recorder.current())
    if (name.starts_with("memory/") || name.starts_with("switch/")) mine[name] = value;
  for (const auto& [name, value] : comm::largest_of_all(world, mine)) recorder.set(name, value);
}

}  // namespace tandem::policy
