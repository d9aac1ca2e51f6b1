// SPDX-License-Identifier: Apache-2.0
// Groups that carry tensors of devices. Where a device's memory is the host's, the ranks' own way of talking does it, once the device
// is done.
#include "tandem/comm/backend/c10d/device_group.h"

#include <ATen/ops/from_blob.h>

#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem::comm {
namespace {

std::vector<int> world_ranks_of(const Group& group) {
  std::vector<int> ranks;
  for (int r = 0; r < group.size(); ++r) ranks.push_back(group.world_rank(r));
  return ranks;
}

class HostMemoryGroup final : public Group {
 public:
  HostMemoryGroup(std::unique_ptr<Group> inner, at::Device device, std::function<void()> synchronize)
      : Group(inner->name(), inner->rank(), world_ranks_of(*inner), device),
        synchronize_(std::move(synchronize)),
        inner_(std::move(inner)) {
    inner_->works_as_one();  // the group that it carries for counts its waits
  }
  std::string death() override { return inner_->death(); }

 private:
  void do_abort(const std::string& reason) noexcept override { inner_->abort(reason); }
  void do_barrier() override { inner_->barrier(); }
  void do_broadcast(at::Tensor& tensor, int root) override {
    at::Tensor here = done(tensor);
    inner_->broadcast(here, root);
  }
  void do_all_reduce(at::Tensor& tensor, ReduceOp op) override {
    at::Tensor here = done(tensor);
    inner_->all_reduce(here, op);
  }
  void do_all_gather(at::Tensor& out, const at::Tensor& in) override {
    at::Tensor here = done(out);
    inner_->all_gather(here, done(in));
  }
  void do_reduce_scatter(at::Tensor& out, const at::Tensor& in) override {
    at::Tensor here = done(out);
    inner_->reduce_scatter(here, done(in));
  }
  void do_all_to_all_v(std::span<const std::byte> send, std::span<const int64_t> send_bytes, std::span<std::byte> receive,
                       std::span<const int64_t> receive_bytes) override {
    synchronize_();
    inner_->all_to_all_v(send, send_bytes, receive, receive_bytes);
  }
  void do_send(const at::Tensor& tensor, int to, int tag) override { inner_->send(done(tensor), to, tag); }
  void do_receive(at::Tensor& tensor, int from, int tag) override {
    at::Tensor here = done(tensor);
    inner_->receive(here, from, tag);
  }
  bool do_arrived(int from, int tag) override { return inner_->arrived(from, tag); }
  std::unique_ptr<Group> do_split(int color, const std::string& name) override {
    return std::make_unique<HostMemoryGroup>(inner_->split(color, name), device(), synchronize_);
  }

  // The same elements, once what was queued on them has run.
  at::Tensor done(const at::Tensor& tensor) const {
    synchronize_();
    return at::for_blob(tensor.data_ptr(), tensor.sizes()).options(tensor.options().device(at::kCPU)).target_device(at::kCPU).make_tensor();
  }

  const std::function<void()> synchronize_;
  const std::unique_ptr<Group> inner_;
};

class HostMemoryGroups final : public DeviceGroups {
 public:
  HostMemoryGroups(Group& world, at::Device device, std::function<void()> synchronize) : world_(world) {
    world.carry_by(std::make_unique<HostMemoryGroup>(world.split(0, world.name()), device, std::move(synchronize)));
  }
  ~HostMemoryGroups() override { world_.carry_by(nullptr); }

 private:
  Group& world_;
};

}  // namespace

std::unique_ptr<DeviceGroups> carry_devices(Group& world, const CarriedDevice& carried, double deadline_s) {
  if (carried.device.is_cpu() || world.size() == 1) return nullptr;
  if (!carried.synchronize) return carry_by_library(world, carried.device, deadline_s);
  return std::make_unique<HostMemoryGroups>(world, carried.device, carried.synchronize);
}

void with_device_groups(Group& world, const CarriedDevice& carried, double deadline_s, const std::function<void()>& body) {
  with_groups(carry_devices(world, carried, deadline_s), world, body);
}

void with_groups(std::unique_ptr<DeviceGroups> groups, Group& world, const std::function<void()>& body) {
  try {
    try {
      body();
      if (groups) groups->end();
    } catch (const std::exception& e) {
      if (groups) groups->throw_death_for(e);
      throw;
    }
  } catch (const EndedByPeer&) {
    throw;
  } catch (const std::exception& e) {
    if (groups) groups->fail(join_text("rank ", world.world_rank(world.rank()), " failed: ", e.what()));
    throw;
  }
}

}  // namespace tandem::comm
