// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/rng.h"

#include <cmath>
#include <numbers>
#include <random>

#include "tandem/base/check.h"

namespace tandem {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
    k = {k[0] + 0x9E3779B9u, k[1] + 0xBB67AE85u};
  }
  return c;
}

int64_t unseeded_number() {
  std::random_device device;
  return static_cast<int64_t>((static_cast<uint64_t>(device()) << 32) | device());
}

uint64_t RandomStream::next_u64() {
  const uint64_t p = position_++;
  const auto r = philox4x32({static_cast<uint32_t>(p), static_cast<uint32_t>(p >> 32), static_cast<uint32_t>(stream_),
                             static_cast<uint32_t>(stream_ >> 32)},
                            {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
  return uint64_t{r[0]} | uint64_t{r[1]} << 32;
}

double RandomStream::uniform() { return static_cast<double>(next_u64() >> 11) * 0x1.0p-53; }

double RandomStream::normal() {
  const double u = 1.0 - uniform();  // in (0, 1]
  const double v = uniform();
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

int64_t RandomStream::below(int64_t bound) {
  TANDEM_CHECK(bound > 0, "bound ", bound);
  return static_cast<int64_t>((static_cast<unsigned __int128>(next_u64()) * static_cast<unsigned __int128>(bound)) >> 64);
}

}  // namespace tandem
