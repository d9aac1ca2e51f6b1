// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/agree.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/file/bytes.h"
#include "tandem/comm/scalar.h"

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

void meet(Group& group) {
  constexpr std::chrono::microseconds kFirst{50}, kMoment{20'000};
  at::Tensor note = at::zeros({1}, group.device());
  const auto take = [&](int from) {
    for (std::chrono::microseconds wait = kFirst; !group.arrived(from, 0); wait = std::min(2 * wait, kMoment))
      std::this_thread::sleep_for(wait);
    group.receive(note, from, 0);
  };
  if (group.rank() > 0) {
    group.send(note, 0, 0);
    return take(0);
  }
  for (int rank = 1; rank < group.size(); ++rank) take(rank);
  for (int rank = 1; rank < group.size(); ++rank) group.send(note, rank, 0);
}

std::optional<Fault> first_fault(Group& group, const std::optional<Fault>& mine) {
  if (group.size() == 1) return mine;
  // The lowest rank with a fault has the largest number.
  const int64_t first = max_over(group, mine ? int64_t{group.size()} - group.rank() : 0);
  if (first == 0) return std::nullopt;
  const std::vector<std::string> said = texts_of_all(group, mine ? join_text(mine->exit_code, ' ', mine->what) : "");
  const int64_t rank = group.size() - first;
  const std::string& text = said[static_cast<size_t>(rank)];
  return Fault{std::atoi(text.c_str()), text.substr(text.find(' ') + 1), rank, std::ranges::count(said, text) == group.size()};
}

void run_alike(Group& group, const std::function<void()>& work) {
  if (group.size() == 1) return work();
  std::optional<Fault> mine;
  try {
    work();
  } catch (const std::exception& e) {
    mine = Fault{exit_code_of(e), e.what()};
  }
  const std::optional<Fault> first = first_fault(group, mine);
  // Shared: by such a call within `work`.
  if (first) throw PeerError(first->is_shared ? first->what : join_text("rank ", first->rank, ": ", first->what));
}

std::map<std::string, double> largest_of_all(Group& group, const std::map<std::string, double>& mine) {
  if (group.size() == 1) return mine;
  std::vector<std::byte> packed;
  ByteWriter out(packed);
  for (const auto& [name, number] : mine) out.text(name), out.raw(&number, sizeof number);
  std::map<std::string, double> all;
  for (const std::vector<std::byte>& part : all_gather_bytes(group, packed))
    for (ByteReader in(part, "numbers of a peer"); !in.at_end();) {
      const std::string name = in.text("a name");
      double number = 0;
      in.raw(&number, sizeof number, "its number");
      const auto [place, is_new] = all.emplace(name, number);
      if (!is_new) place->second = std::max(place->second, number);
    }
  return all;
}

void exchange_rows(Group& group, std::vector<std::vector<float>>& rows, bool speaks) {
  if (group.size() == 1) return;
  std::vector<std::byte> packed;
  ByteWriter out(packed);
  for (size_t i = 0; speaks && i < rows.size(); ++i)
    if (!rows[i].empty()) out.number(static_cast<int64_t>(i)), out.bytes(std::as_bytes(std::span(rows[i])));
  for (const std::vector<std::byte>& part : all_gather_bytes(group, packed))
    for (ByteReader in(part, "rows of a peer"); !in.at_end();) {
      const auto i = static_cast<size_t>(in.number("the number of a row"));
      const std::span<const std::byte> values = in.bytes("its values");
      TANDEM_CHECK(i < rows.size(), "row ", i, " of a peer");
      rows[i].resize(values.size() / sizeof(float));
      std::memcpy(rows[i].data(), values.data(), values.size());
    }
}

void broadcast_bytes(Group& group, std::span<std::byte> bytes) {
  at::Tensor mine = at::from_blob(bytes.data(), {std::ssize(bytes)}, at::kByte), there = mine.to(group.device());
  group.broadcast(there, 0);
  mine.copy_(there);
}

}  // namespace tandem::comm
