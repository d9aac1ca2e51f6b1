// SPDX-License-Identifier: Apache-2.0
#pragma once
// Counter-based random numbers: a stream is (seed, stream id), a draw is a pure function of its index. Streams need no
// shared state, so a sample's random numbers depend neither on its neighbours nor on the rank that runs it.

#include <array>
#include <cstdint>

namespace tandem {

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11).
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// Another each time, which nobody can foresee: for secrets, and for names that are to be unlike all others.
int64_t unseeded_number();

/// Threads: a value; copy it freely. `position` is all of its state and may be saved and restored.
class RandomStream {
 public:
  RandomStream(uint64_t seed, uint64_t stream, uint64_t position = 0) : seed_(seed), stream_(stream), position_(position) {}

  uint64_t next_u64();
  double uniform();                    ///< in [0, 1), 53 bits
  double normal();                     ///< standard normal; uses two draws
  int64_t below(int64_t bound);        ///< in [0, bound), bound > 0
  uint64_t position() const { return position_; }

 private:
  uint64_t seed_, stream_, position_;
};

}  // namespace tandem
