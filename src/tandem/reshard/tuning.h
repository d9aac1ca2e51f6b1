// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every number that plans were tuned with, and its reason. Another number makes another plan, never a wrong one.
// docs/design/reshard.md has the rules and the figures.

#include <cstddef>
#include <cstdint>

namespace tandem::reshard::tuning {

/// A fragment of so few bytes comes from one sender. Even across nodes it takes less than a microsecond, at 25 GB/s.
inline constexpr int64_t kUncut_bytes = 16 << 10;

/// One of so many nodes that lack a fragment relays it to the others.
/// For the 28 such nodes of DeepSeek-V3, three, four and seven relays differ by 2 %; a single one costs 2 to 8 % more.
inline constexpr std::ptrdiff_t kNodes_of_relay = 8;

/// So many transfers share a bucket under overlap, where it stages two out, two in and two of a neighbour. So do those across
/// nodes, since each bucket is to have its part of them.
inline constexpr int64_t kTransfers_of_bucket = 6;

/// A fragment is cut between rows if a transfer holds at least so many. A transfer then ends at most a quarter short.
inline constexpr int64_t kRows_of_transfer = 4;

/// Senders keep pace with each other in so many steps. A step of a model's transfers is then far less than a bucket.
inline constexpr size_t kSteps_of_pace = 1 << 14;

/// What a rank may send to other nodes in one bucket, or get from them: the average of a bucket and a tenth. Without slack the
/// last transfers would open further buckets, since messages do not fill a limit exactly.
inline constexpr int64_t far_bytes(int64_t total_bytes, int64_t num_buckets) { return total_bytes * 11 / 10 / num_buckets; }

/// Buckets that a rank needs for so many bytes sent and received. One and a half stagings share an overlapped bucket, if as much is
/// sent as received.
inline constexpr int64_t buckets_of(int64_t bytes, bool overlap, int64_t bucket_bytes) {
  return bytes * (overlap ? 3 : 2) / 2 / bucket_bytes;
}

/// Sizes by which Rooms sorts buckets, each the square root of a half of the one before: 181/256, in whole numbers.
/// A bucket with less room than the smallest, a ninetieth of a bucket, counts as full, so that scraps cost no search.
inline constexpr size_t kNum_sizes = 14;
inline constexpr int64_t size_of_room(int64_t whole_bytes, size_t step) {
  return (step % 2 == 0 ? whole_bytes : whole_bytes - whole_bytes / 256 * 75) >> step / 2;
}

}  // namespace tandem::reshard::tuning
