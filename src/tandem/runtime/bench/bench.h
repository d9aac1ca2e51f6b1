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
  int64_t prompts = 16;              ///< grpo_step: per step
  int64_t gens = 8;                  ///< grpo_step, scheduler: responses per prompt
  int64_t prompt_len = 32;
  int64_t new_tokens = 64;           ///< grpo_step: of each response
  double beta = 0.0;                 ///< KL coefficient of grpo_step
  std::string mode = "fixed";        ///< generate: fixed or ragged
  int64_t batch = 32;                ///< generate: sequences that run at a time
  int64_t sequences = 0;             ///< generate: 0 is one batch in fixed mode, all of `lengths` in ragged mode; scheduler: 0 is 128
  /// generate: of each in fixed mode, 0 is 64; of each at most in ragged mode, 0 is no bound. scheduler: of each at most, 0 is 64
  int64_t response_tokens = 0;
  std::vector<int64_t> lengths;      ///< response lengths of ragged generation and of train_step
  std::string train_layout;          ///< train_step: ranks as threads of this process, which share the compute threads
  std::string recompute = "none";    ///< train_step: as train.recompute
  bool swap_optimizer = false;       ///< train_step: as train.swap_optimizer
  int64_t micro_batch_tokens = 0;    ///< train_step: 0 takes the default of train.micro_batch_tokens
  bool parity = false;
  int64_t samples = 1024;            ///< tensor_cache: of the batch, over all ranks
  int64_t seq = 2048;                ///< tensor_cache: tokens of a sample
  int64_t ranks = 0;                 ///< tensor_cache, switch: as threads of this process, 0 is two; not under a launcher
  std::string from_layout, to_layout;  ///< switch: of training, of rollout
  int64_t bucket_mib = 64;           ///< switch: as parallel.reshard_bucket_mib
  int64_t seed = 0;
};

/// The git commit that the program was built from, `-dirty` behind it where tracked files were changed; "unknown" outside git.
const char* build_commit();

/// One object: name, commit, device, the conditions that this benchmark read, machine, `answer_checked`, and under `rows` each
/// figure's median, mad, min, max and n.
/// Errors: UserError for options, those that the benchmark would not read among them; InternalError if the answer is wrong.
nlohmann::json bench_grpo_step(const BenchOptions& options);
nlohmann::json bench_generate(const BenchOptions& options);
nlohmann::json bench_train_step(const BenchOptions& options);
/// What the engine's scheduler costs the host, without a model.
nlohmann::json bench_scheduler(const BenchOptions& options);
/// A batch from one stage to the next, with equal and unequal layouts. Null on ranks other than the first.
nlohmann::json bench_tensor_cache(const BenchOptions& options);
/// The weights of a model from one layout to another. Null on ranks other than the first.
nlohmann::json bench_switch(const BenchOptions& options);

}  // namespace tandem::runtime
