// SPDX-License-Identifier: Apache-2.0
#include "tandem/policy/compute.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <set>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/base/strings.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/scalar.h"
#include "tandem/device/device.h"
#include "tandem/doctor/trust.h"
#include "tandem/model/model_on_rank.h"
#include "tandem/train/trainer.h"

namespace tandem::policy {
namespace {

const model::kernel::Backend& backend_of(const config::RunConfig& c, at::Device device) {
  return model::kernel::backend_named(c.run.kernels, device, "run.kernels");
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

// How rows are computed there: by instructions of which processor, and what attention multiplies bfloat16 rows by.
std::string rows_on(at::Device device, const config::RunConfig& c) {
  const bool half = c.model.dtype == "bfloat16" || rollout_dtype(c) == "bfloat16";
  return backend_of(c, device).instructions(half ? c10::kBFloat16 : c10::kFloat, c.run.parity, device);
}

// The products if all ranks compute rows as they were computed, else none. Collective.
model::Products kept(const model::Products& products, const config::RunConfig& c, at::Device device, comm::Group& world) {
  if (c.run.parity || products.rows.empty()) return {};
  const std::string here = rows_on(device, c);
  if (!comm::any_of(world, products.rows != here)) return products;
  if (world.rank() == 0)
    log::warning("the run goes on from one with row kernels for ", products.rows, ", here they are for ", here,
                 " or differ between ranks: the last bits of sums may differ, and products are measured anew");
  return {};
}

// Whether each rank of this machine sees one device, and no two the same: so a launcher may deal them out. Collective.
bool has_one_each(const std::string& name, comm::Group& world) {
  if (world.size() == 1) return false;
  const std::vector<std::string> of_all = comm::texts_of_all(world, device::lone_device(name));
  std::set<std::string> seen;
  for (int rank = 0; rank < world.size(); ++rank) {
    const std::string& one = of_all[static_cast<size_t>(rank)];
    if (world.machine(rank) == world.machine(world.rank()) && (one.empty() || !seen.insert(one).second)) return false;
  }
  return true;
}

// Ranks that share sums and weights compute alike. Collective.
void check_one_kind(at::Device device, comm::Group& world) {
  if (world.size() == 1) return;
  const std::vector<std::string> kinds = comm::texts_of_all(world, device::backend_of(device).name);
  const auto other = std::ranges::find_if(kinds, [&](const std::string& kind) { return kind != kinds[0]; });
  if (other == kinds.end()) return;
  throw UserError("run.device", join_text("is ", kinds[0], " on rank 0 and ", *other, " on rank ", other - kinds.begin()),
                  "cpu, or machines that all have a device for each of their ranks");
}

}  // namespace

at::Device device_of(const config::RunConfig& config, comm::Group& world) {
  int here = 0, before = 0;  // ranks of this machine, and those of them before this one
  for (int rank = 0; rank < world.size(); ++rank) {
    if (world.machine(rank) != world.machine(world.rank())) continue;
    ++here;
    before += rank < world.rank();
  }
  if (has_one_each(config.run.device, world)) here = 1, before = 0;
  const at::Device device = device::device_named(config.run.device, "run.device", before, here);
  check_one_kind(device, world);
  device::backend_of(device).use(device);
  return device;
}

void trust_device(const config::RunConfig& config, at::Device device, comm::Group& world) {
  constexpr std::chrono::milliseconds kMoment{50};
  (void)backend_of(config, device);
  const bool is_real = !device.is_cpu() && !device::backend_of(device).has_host_memory;
  if (config.run.proof == "never" || (config.run.proof == "auto" && !is_real)) return;
  bool is_first = true;
  for (int r = 0; r < world.rank(); ++r) is_first &= world.machine(r) != world.machine(world.rank());
  std::future<void> asked;
  if (is_first)
    asked = std::async(std::launch::async,
                       [&] { doctor::trust(device, config.run.kernels, doctor::proof_folder(), config.run.proof == "always"); });
  while (comm::any_of(world, is_first && asked.wait_for(kMoment) != std::future_status::ready)) continue;
  comm::run_alike(world, [&] {
    if (is_first) asked.get();
  });
}

Compute::Compute(const config::RunConfig& config, comm::Group& world, const model::Products& known, at::Device device)
    : Compute(Held{kept(known, config, device, world)}, config, world, device) {}

Compute::Compute(const Held& held, const config::RunConfig& config, comm::Group& world, at::Device device)
    : config_(config),
      world_(world),
      device_(device),
      train_(model::products_for(of_training(held.products), world)),
      rollout_(has_own_dtype(config) ? model::products_for(of_rollout(held.products), world) : train_) {}

model::ProductsWanted Compute::of_training(const model::Products& known) const {
  return {&backend_of(config_, device_), device_, model::dtype_of(config_.model.dtype, "model.dtype"), config_.run.parity, "model.products",
          config_.model.products, known_in(config_.model.dtype, known.training, known.training_dtype)};
}

model::ProductsWanted Compute::of_rollout(const model::Products& known) const {
  const std::string& dtype = rollout_dtype(config_);
  return {&backend_of(config_, device_), device_, model::dtype_of(dtype, "rollout.dtype"), config_.run.parity, "rollout.products",
          config_.rollout.products, known_in(dtype, known.rollout, known.rollout_dtype)};
}

model::Products Compute::products() const {
  return {to_text(train_.choice()), config_.model.dtype, to_text(rollout_.choice()), rollout_dtype(config_), rows_on(device_, config_)};
}

std::string Compute::text() const {
  const bool two = train_.dtype() != rollout_.dtype();
  std::string text = join_text("products: ", train_.description());
  if (two) text += join_text("; of rollout: ", rollout_.description());
  text += join_text("; rows ", rows_on(device_, config_));
  if (config_.run.parity || train_.backend().product.choices == nullptr) return text;
  text += join_text("; to repeat: model.products=\"", to_text(train_.choice()), '"');
  return two ? join_text(text, " rollout.products=\"", to_text(rollout_.choice()), '"') : text;
}

void Compute::adopt(const model::Products& products) {
  const model::Products known = kept(products, config_, device_, world_);
  if (const auto choice = model::known_choice(of_training(known), world_)) train_ = {train_.backend(), train_.dtype(), *choice, device_};
  if (rollout_.dtype() == train_.dtype()) rollout_ = train_;
  else if (const auto own = model::known_choice(of_rollout(known), world_))
    rollout_ = {rollout_.backend(), rollout_.dtype(), *own, device_};
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

std::shared_ptr<const generate::Environment> environment_of(const config::RunConfig& config) {
  return generate::make_environment(config.episode, config.reward);
}

generate::GenerateSetup generate_setup(const config::RunConfig& config, const model::ModelConfig& model, const text::Tokenizer& tokenizer,
                                       std::shared_ptr<const generate::Environment> environment) {
  const rollout::Sampling& sampling = config.rollout.sampling;
  return {.sampling = sampling,
          .group_size = config.schedule.queue.group_size,
          .seed = static_cast<uint64_t>(config.run.seed),
          .record_routes = config.schedule.routing_replay,
          .with_greedy = config.algo.compares_with_greedy(),
          .ends = generate::ResponseEnds(config.rollout.stop, sampling, model, &tokenizer),
          .has_episodes = config.has_episodes(),
          .environment = std::move(environment)};
}

}  // namespace tandem::policy
