// SPDX-License-Identifier: Apache-2.0
#include "tandem/worker/orders.h"

#include <cstring>
#include <utility>

#include "tandem/base/file/bytes.h"
#include "tandem/queue/message.h"

namespace tandem::worker {
namespace {

// Tasks travel as the answer that gave them.
std::vector<std::byte> bytes_of(std::vector<queue::Task> tasks) {
  queue::answer::Leased leased;
  for (queue::Task& task : tasks) {
    leased.leases.push_back(task.lease);
    leased.prompts.push_back(std::move(task.prompt));
    if (!task.begun.empty()) leased.begun.push_back({task.lease.group, {}, {}, std::move(task.begun)});
  }
  return queue::to_bytes(queue::Answer{{}, 0, {}, std::move(leased)});
}

std::vector<queue::Task> tasks_of(std::span<const std::byte> bytes) {
  queue::Answer answer = queue::answer_of(bytes);
  auto& leased = std::get<queue::answer::Leased>(answer.what);
  std::vector<queue::Task> tasks;
  auto begun = leased.begun.begin();
  for (size_t i = 0; i < leased.leases.size(); ++i) {
    queue::Task& task = tasks.emplace_back(queue::Task{leased.leases[i], std::move(leased.prompts[i])});
    if (begun != leased.begun.end() && begun->id == task.lease.group) task.begun = std::move((begun++)->samples);
  }
  return tasks;
}

void write(ByteWriter& out, const std::vector<data::GroupId>& groups) {
  out.bytes(std::as_bytes(std::span(groups)));
}

std::vector<data::GroupId> read(ByteReader& in) {
  const std::span<const std::byte> bytes = in.bytes("groups");
  std::vector<data::GroupId> groups(bytes.size() / sizeof(data::GroupId));
  std::memcpy(groups.data(), bytes.data(), groups.size() * sizeof(data::GroupId));
  return groups;
}

}  // namespace

Orders orders_of_first(comm::Group& world, Orders mine) {
  if (world.size() == 1) return mine;
  std::vector<std::byte> bytes;
  if (world.rank() == 0) {
    ByteWriter out(bytes);
    out.number(mine.ends);
    out.text(mine.welcome);
    out.number(value(mine.newest));
    out.bytes(bytes_of(mine.tasks));
    write(out, mine.cancelled);
    write(out, mine.reported);
  }
  bytes = comm::all_gather_bytes(world, bytes).front();
  if (world.rank() == 0) return mine;
  ByteReader in(bytes, "orders of the first rank");
  Orders orders;
  orders.ends = in.number("whether it ends") != 0;
  orders.welcome = in.text("a welcome");
  orders.newest = data::PolicyVersion{in.number("a version")};
  orders.tasks = tasks_of(in.bytes("tasks"));
  orders.cancelled = read(in);
  orders.reported = read(in);
  return orders;
}

}  // namespace tandem::worker
