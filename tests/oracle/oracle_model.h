// SPDX-License-Identifier: Apache-2.0
#pragma once
// The suite `model`: a folder such as tests/fixtures/llama against the decoder, the trainer and the rollout engine.

#include <string>

#include "oracle/report.h"
#include "oracle/suites.h"

namespace tandem::cli {

/// Logits, log-probabilities, entropies, greedy tokens, gradients and a run of AdamW; tolerances of tests/oracles/README.md.
void run_model(const std::string& dir, const OracleOptions& options, Report& report);

}  // namespace tandem::cli
