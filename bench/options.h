// SPDX-License-Identifier: Apache-2.0
#pragma once
// What several benchmarks read. Each has its own options beside it, in its own header.

#include <cstdint>
#include <string>

#include "tandem/base/options.h"

namespace tandem::bench {

/// Of every benchmark.
struct Common {
  int64_t repeats = 5;  ///< measured ones; one more comes first as a warm-up
};
inline void describe(OptionVisitor& field, Common& o) { field("repeats", o.repeats, "Measured repeats", at_least(1)); }

/// Of those that have a model.
struct WithModel : Common {
  std::string model;
  std::string dtype = "float32";
  int64_t threads = 0;  ///< 0 takes every core
};

/// Of those that compute with it, on ids drawn at random.
struct Computing : WithModel {
  std::string device = "auto";
  std::string kernels = "auto";
  bool parity = false;
  int64_t seed = 0;
};
inline void describe(OptionVisitor& field, Computing& o) {
  describe(field, static_cast<Common&>(o));
  field("seed", o.seed, "Seed of the workload", at_least(0));
}

}  // namespace tandem::bench
