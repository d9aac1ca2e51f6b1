// SPDX-License-Identifier: Apache-2.0
#pragma once
// The benchmarks behind `tandem bench`. Each checks its answer before it reports, and runs the code that a run runs.

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::runtime {

struct BenchOptions {
  std::string model;
  std::string dtype = "float32";
  int64_t threads = 0;
  int64_t repeats = 5;               ///< measured ones; one more comes first as a warm-up
  int64_t prompts = 16;
  int64_t gens = 8;
  int64_t prompt_len = 32;
  int64_t new_tokens = 64;
  double beta = 0.0;                 ///< KL coefficient of grpo_step
  std::string mode = "fixed";        ///< generate: fixed or ragged
  int64_t batch = 32;                ///< generate: sequences that run at a time
  std::vector<int64_t> lengths;      ///< response lengths of ragged generation and of train_step
  int64_t micro_batch_tokens = 0;    ///< train_step: 0 takes the default of train.micro_batch_tokens
  bool parity = false;
  int64_t seed = 0;
};

/// One object: name, conditions, `answer_checked`, and under `rows` each figure's median, mad, min, max and n.
/// Errors: UserError for options; InternalError if the answer is wrong.
nlohmann::json bench_grpo_step(const BenchOptions& options);
nlohmann::json bench_generate(const BenchOptions& options);
nlohmann::json bench_train_step(const BenchOptions& options);

}  // namespace tandem::runtime
