// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/agree.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdlib>
#include <ios>

#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem::comm {

std::vector<std::string> texts_of_all(Group& group, const std::string& mine) {
  std::vector<std::string> all;
  for (const std::vector<std::byte>& part : all_gather_bytes(group, std::as_bytes(std::span(mine))))
    all.emplace_back(reinterpret_cast<const char*>(part.data()), part.size());
  return all;
}

std::string text_of_first(Group& group, const std::string& mine) {
  return group.size() == 1 ? mine : texts_of_all(group, group.rank() == 0 ? mine : "").front();
}

void run_alike(Group& group, const std::function<void()>& work) {
  if (group.size() == 1) return work();
  std::string fault;
  try {
    work();
  } catch (const std::exception& e) {
    fault = e.what();
  }
  const std::vector<std::string> faults = texts_of_all(group, fault);
  const auto first = std::find_if(faults.begin(), faults.end(), [](const std::string& text) { return !text.empty(); });
  if (first == faults.end()) return;
  const bool agreed = std::count(faults.begin(), faults.end(), *first) == group.size();  // by such a call within `work`
  throw PeerError(agreed ? *first : join_text("rank ", first - faults.begin(), ": ", *first));
}

std::map<std::string, double> largest_of_all(Group& group, const std::map<std::string, double>& mine) {
  if (group.size() == 1) return mine;
  std::string text;
  for (const auto& [name, number] : mine) text += join_text(name, ' ', std::hexfloat, number, '\n');
  std::map<std::string, double> all;
  for (const std::string& other : texts_of_all(group, text))
    for (size_t at = 0; at < other.size(); at = other.find('\n', at) + 1) {
      const size_t space = other.find(' ', at);
      const double number = std::strtod(other.c_str() + space, nullptr);
      const auto [place, is_new] = all.emplace(other.substr(at, space - at), number);
      if (!is_new) place->second = std::max(place->second, number);
    }
  return all;
}

void exchange_rows(Group& group, std::vector<std::vector<float>>& rows, bool speaks) {
  if (group.size() == 1) return;
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
  for (const std::vector<std::byte>& part : all_gather_bytes(group, packed)) {
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

void broadcast_bytes(Group& group, std::span<std::byte> bytes) {
  at::Tensor all = at::empty({std::ssize(bytes)}, at::kByte);
  std::memcpy(all.mutable_data_ptr(), bytes.data(), bytes.size());
  all = all.to(group.device());
  group.broadcast(all, 0);
  all = all.cpu();
  std::memcpy(bytes.data(), all.const_data_ptr(), bytes.size());
}

}  // namespace tandem::comm
