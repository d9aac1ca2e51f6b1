// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/staging.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <numeric>

#include "tandem/base/check.h"
#include "tandem/base/file/checksum.h"

namespace tandem::reshard {
namespace {

int64_t elements_of(const RankPlan::Move& move) {
  int64_t elements = 0;
  for (const Box& box : move.boxes) elements += box.num_elements();
  return elements;
}

}  // namespace

Staging::Staging(std::span<const RankPlan::Move> moves, const Format& format)
    : moves_(moves), format_(format), bytes_by_rank_(static_cast<size_t>(format.num_ranks)) {
  const auto width = static_cast<int64_t>(c10::elementSize(format.dtype));
  for (const RankPlan::Move& m : moves) bytes_by_rank_[static_cast<size_t>(m.peer)] += elements_of(m) * width;
  element_bytes_ = std::accumulate(bytes_by_rank_.begin(), bytes_by_rank_.end(), int64_t{0});
  if (format.checksums)
    for (int64_t& bytes : bytes_by_rank_)
      if (bytes > 0) bytes += kChecksum_bytes;
  const int64_t all = std::accumulate(bytes_by_rank_.begin(), bytes_by_rank_.end(), int64_t{0});
  memory_ = at::empty({all}, at::device(format.device).dtype(at::kByte));
}

void Staging::each_slot(const std::function<void(const at::Tensor&, const RankPlan::Move&, const Box&)>& visit) const {
  const auto width = static_cast<int64_t>(c10::elementSize(format_.dtype));
  int64_t begin = 0;
  for (size_t i = 0; i < moves_.size(); ++i) {
    if (format_.checksums && i > 0 && moves_[i].peer != moves_[i - 1].peer) begin += kChecksum_bytes;
    for (const Box& box : moves_[i].boxes) {
      const int64_t bytes = box.num_elements() * width;
      visit(memory_.narrow(0, begin, bytes).view(format_.dtype).view(box.shape()), moves_[i], box);
      begin += bytes;
    }
  }
}

std::vector<Staging::Message> Staging::messages() const {
  TANDEM_CHECK(memory_.is_cpu(), "checksums of bytes on ", memory_.device());
  const std::span bytes(static_cast<std::byte*>(memory_.data_ptr()), memory_.nbytes());
  std::vector<Message> all;
  size_t begin = 0;
  for (size_t first = 0, last; first < moves_.size(); first = last) {
    for (last = first + 1; last < moves_.size() && moves_[last].peer == moves_[first].peer;) ++last;
    const auto length = static_cast<size_t>(bytes_by_rank_[static_cast<size_t>(moves_[first].peer)]);
    const std::span message = bytes.subspan(begin, length);
    all.push_back({first, last, message.first(length - kChecksum_bytes), message.last(kChecksum_bytes)});
    begin += length;
  }
  return all;
}

void Staging::seal() {
  for (const Message& m : messages()) {
    const uint64_t sum = checksum_of(m.elements);
    std::memcpy(m.checksum.data(), &sum, sizeof sum);
  }
}

std::span<const RankPlan::Move> Staging::broken() const {
  for (const Message& m : messages()) {
    const uint64_t sum = checksum_of(m.elements);
    if (std::memcmp(m.checksum.data(), &sum, sizeof sum) != 0) return moves_.subspan(m.first, m.last - m.first);
  }
  return {};
}

}  // namespace tandem::reshard
