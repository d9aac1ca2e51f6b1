// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/exchange.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ios>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/data/columns.h"

namespace tandem::runtime {

std::vector<data::Group> exchange_groups(comm::Group& world, std::vector<data::Group> mine, bool speaks) {
  if (world.size() == 1) return mine;
  std::vector<std::byte> packed;
  if (speaks && !mine.empty()) packed = data::pack(data::fields_of(mine));
  std::vector<data::Group> all;
  for (const std::vector<std::byte>& part : comm::all_gather_bytes(world, packed)) {
    if (part.empty()) continue;
    for (data::Group& group : data::groups_of(data::unpack(part))) all.push_back(std::move(group));
  }
  std::sort(all.begin(), all.end(), [](const data::Group& a, const data::Group& b) { return a.id < b.id; });
  return all;
}

std::vector<data::GroupId> exchange_ids(comm::Group& world, const std::vector<data::GroupId>& mine) {
  if (world.size() == 1) return mine;
  std::vector<data::GroupId> all;
  for (const std::vector<std::byte>& part : comm::all_gather_bytes(world, std::as_bytes(std::span(mine)))) {
    const size_t before = all.size();
    all.resize(before + part.size() / sizeof(data::GroupId));
    std::memcpy(all.data() + before, part.data(), part.size());
  }
  return all;
}

namespace {

std::vector<std::string> texts_of_all(comm::Group& world, const std::string& mine) {
  std::vector<std::string> all;
  for (const std::vector<std::byte>& part : comm::all_gather_bytes(world, std::as_bytes(std::span(mine))))
    all.emplace_back(reinterpret_cast<const char*>(part.data()), part.size());
  return all;
}

}  // namespace

std::string text_of_first(comm::Group& world, const std::string& mine) {
  return world.size() == 1 ? mine : texts_of_all(world, world.rank() == 0 ? mine : "").front();
}

void run_alike(comm::Group& world, const std::function<void()>& work) {
  if (world.size() == 1) return work();
  std::string fault;
  try {
    work();
  } catch (const std::exception& e) {
    fault = e.what();
  }
  const std::vector<std::string> faults = texts_of_all(world, fault);
  const auto first = std::find_if(faults.begin(), faults.end(), [](const std::string& text) { return !text.empty(); });
  if (first == faults.end()) return;
  const bool agreed = std::count(faults.begin(), faults.end(), *first) == world.size();  // by such a call within `work`
  throw PeerError(agreed ? *first : join_text("rank ", first - faults.begin(), ": ", *first));
}

std::map<std::string, double> largest_of_all(comm::Group& world, const std::map<std::string, double>& mine) {
  if (world.size() == 1) return mine;
  std::string text;
  for (const auto& [name, number] : mine) text += join_text(name, ' ', std::hexfloat, number, '\n');
  std::map<std::string, double> all;
  for (const std::string& other : texts_of_all(world, text))
    for (size_t at = 0; at < other.size(); at = other.find('\n', at) + 1) {
      const size_t space = other.find(' ', at);
      const double number = std::strtod(other.c_str() + space, nullptr);
      const auto [place, is_new] = all.emplace(other.substr(at, space - at), number);
      if (!is_new) place->second = std::max(place->second, number);
    }
  return all;
}

double sum_over(comm::Group& world, double mine) {
  if (world.size() == 1) return mine;
  at::Tensor sum = at::zeros({1}, at::kDouble).fill_(mine);
  world.all_reduce(sum, comm::ReduceOp::kSum);
  return sum.data_ptr<double>()[0];
}

void exchange_rows(comm::Group& world, std::vector<std::vector<float>>& rows, bool speaks) {
  if (world.size() == 1) return;
  // [index, length, values...] for each row this rank owns; indices and lengths as raw 64-bit words.
  std::vector<std::byte> packed;
  const auto put = [&](const void* from, size_t bytes) {
    const auto* p = static_cast<const std::byte*>(from);
    packed.insert(packed.end(), p, p + bytes);
  };
  for (size_t i = 0; speaks && i < rows.size(); ++i) {
    if (rows[i].empty()) continue;
    const uint64_t head[2] = {i, rows[i].size()};
    put(head, sizeof head);
    put(rows[i].data(), rows[i].size() * sizeof(float));
  }
  for (const std::vector<std::byte>& part : comm::all_gather_bytes(world, packed)) {
    for (size_t at = 0; at < part.size();) {
      uint64_t head[2];
      std::memcpy(head, part.data() + at, sizeof head);
      at += sizeof head;
      TANDEM_CHECK(head[0] < rows.size() && at + head[1] * sizeof(float) <= part.size(), "rows from a peer");
      rows[head[0]].resize(head[1]);
      std::memcpy(rows[head[0]].data(), part.data() + at, head[1] * sizeof(float));
      at += head[1] * sizeof(float);
    }
  }
}

}  // namespace tandem::runtime
