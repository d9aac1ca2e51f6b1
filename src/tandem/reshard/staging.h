// SPDX-License-Identifier: Apache-2.0
#pragma once
// The messages of one bucket that a rank sends, or receives.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "tandem/reshard/plan.h"

namespace tandem::reshard {

/// One message for each peer that has a part, one after the other: the elements of its boxes and, if asked for, a checksum of them.
///
/// Ownership  owns the memory; uses the moves.
class Staging {
 public:
  struct Format {
    int num_ranks;
    at::ScalarType dtype;
    at::Device device;
    bool checksums;
  };
  Staging(std::span<const RankPlan::Move> moves, const Format& format);

  /// The memory of each box, in its shape.
  void each_slot(const std::function<void(const at::Tensor& slot, const RankPlan::Move& move, const Box& box)>& visit) const;

  /// Ends each message with the checksum of its elements.
  void seal();
  /// The moves of the first message that is not as its sender sealed it; empty if all are.
  std::span<const RankPlan::Move> broken() const;

  const at::Tensor& memory() const { return memory_; }  ///< bytes, of all messages
  std::span<const int64_t> bytes_by_rank() const { return bytes_by_rank_; }
  int64_t element_bytes() const { return element_bytes_; }  ///< of all messages, without checksums

 private:
  struct Message {
    size_t first, last;  // of the moves
    std::span<std::byte> elements, checksum;
  };
  std::vector<Message> messages() const;  // on the host

  std::span<const RankPlan::Move> moves_;
  Format format_;
  std::vector<int64_t> bytes_by_rank_;
  int64_t element_bytes_ = 0;
  at::Tensor memory_;
};

}  // namespace tandem::reshard
