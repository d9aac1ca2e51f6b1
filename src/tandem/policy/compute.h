// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a rank computes with: the matrix products of training and of rollout, and memory on device and host.

#include <string>

#include "tandem/comm/group.h"
#include "tandem/config/config.h"
#include "tandem/device/arena.h"
#include "tandem/generate/setup.h"
#include "tandem/model/kernel/kernels.h"
#include "tandem/model/products.h"
#include "tandem/monitor/recorder.h"

namespace tandem::policy {

/// Threads    one rank, one thread.
class Compute {
 public:
  /// `known`: the products of a warm start. The run keeps them unless its options name others. Collective.
  Compute(const config::RunConfig& config, comm::Group& world, const model::Products& known = {}, at::Device device = at::kCPU);

  const model::kernel::Kernels& train() const { return train_; }
  /// The same as train(), unless rollout has a dtype of its own.
  const model::kernel::Kernels& rollout() const { return rollout_; }
  /// Of weights on the way to the rollout: the narrower of both dtypes.
  c10::ScalarType switch_dtype() const { return train_.dtype() == c10::kBFloat16 ? train_.dtype() : rollout_.dtype(); }

  model::Products products() const;
  /// Names the products, and the options by which another run gets the same.
  std::string text() const;
  /// The products of a checkpoint replace what this run measured, not what its options name. Collective.
  void adopt(const model::Products& products);

 private:
  struct Held {
    model::Products products;  // what holds here of those that were known
  };
  Compute(const Held& held, const config::RunConfig& config, comm::Group& world, at::Device device);
  model::ProductsWanted of_training(const model::Products& known) const;
  model::ProductsWanted of_rollout(const model::Products& known) const;

  const config::RunConfig& config_;
  comm::Group& world_;
  at::Device device_;
  model::kernel::Kernels train_, rollout_;
};

/// Where this rank computes, as run.device has it; the calling thread works with that from now on. Collective. Errors: UserError, also
/// where ranks find devices of several kinds.
at::Device device_of(const config::RunConfig& config, comm::Group& world);

/// Where run.proof asks for it, `device`, this rank's, proves its kernels to this program (doctor/trust.h): by the first rank of each
/// machine, whose others have devices of the same kind. Collective, and no rank waits longer than a moment at a time.
/// Errors: UserError where run.kernels does not serve the device; PeerError naming kernels that are wrong.
void trust_device(const config::RunConfig& config, at::Device device, comm::Group& world);

struct Memory {
  Memory(const config::MemoryOptions& options, at::Device place)
      : device("device", options.device_mib << 20, place), host("host", options.host_mib << 20) {}

  device::Arena device, host;
};

/// Writes bytes of memory by owner as metrics; with those of the stages and the switch, the most of any rank. Collective.
class MemoryMetrics {
 public:
  MemoryMetrics(const config::MemoryOptions& options, Memory& memory) : options_(options), memory_(memory) {}
  void record(monitor::Recorder& recorder, comm::Group& world);

 private:
  const config::MemoryOptions& options_;
  Memory& memory_;
  bool told_of_budget_ = false;  // that passes took more than memory.device_mib
};

/// The environment of the recipe's episodes; null without episodes. Errors: UserError as generate::make_environment.
std::shared_ptr<const generate::Environment> environment_of(const config::RunConfig& config);
/// What the recipe says of generation for training. `environment`: on the rank that talks to it for its replica; else null. The tokenizer
/// must outlive it.
generate::GenerateSetup generate_setup(const config::RunConfig& config, const model::ModelConfig& model, const text::Tokenizer& tokenizer,
                                       std::shared_ptr<const generate::Environment> environment);

}  // namespace tandem::policy
