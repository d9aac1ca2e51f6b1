// SPDX-License-Identifier: Apache-2.0
#pragma once
// From rewards to advantages, in fp64. First responses are compared with each other, by their scores alone: every rank does so for the
// whole batch. Then each response gets its tokens' advantages, where it is trained. T = tokens of one response.
//
//   scores -> compare_responses -> token_advantages -> whiten

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tandem/algo/algorithm.h"

namespace tandem::algo {

/// The words of algo.advantage, and which estimator one means; the oracles have the same. Errors: UserError with the nearest word.
std::vector<std::string> advantage_names();
Advantage advantage_of(const std::string& word);

/// All responses of a batch; one entry each.
struct Responses {
  std::span<const double> scores;
  std::span<const int64_t> groups;         ///< those with the same entry answer the same prompt, in any order
  std::span<const int64_t> lengths;        ///< their tokens, without tool output
  std::span<const double> greedy_scores;   ///< ReMax: the score of the greedy answer to the prompt; else empty
};

/// What each response is worth among the others; 0 for an estimator that looks at one response alone.
std::vector<double> compare_responses(const Responses& responses, const Algorithm& algorithm);

/// One response. Its score stands on its last trainable token, beside what is rewarded token by token.
struct ResponseTokens {
  std::span<const double> rewards_T;
  std::span<const uint8_t> trainable_T;  ///< 0 on tool output; empty: all tokens are
  std::span<const double> values_T;      ///< GAE: what the critic expects from each token on; else empty
  double value_after = 0;                ///< GAE: what it expects behind the last one; 0 where the response has ended
};

struct TokenAdvantages {
  std::vector<double> advantages_T;  ///< not yet whitened; 0 where a token is not trainable
  std::vector<double> returns_T;     ///< GAE: what the critic should have said; else empty
};

/// `compared` is the response's entry of compare_responses.
TokenAdvantages token_advantages(const ResponseTokens& tokens, double compared, const Algorithm& algorithm);

/// The advantages of a response that are whitened with those of its batch.
struct WhitenedTokens {
  std::span<double> advantages_T;
  std::span<const uint8_t> trainable_T;  ///< 0: it does not count, and stays; empty: all count
};

/// What numbers up to `largest` in size are multiplied with before they are summed or squared, so that neither overflows: a power of two,
/// so that no bit is lost; 1 where none could.
double overflow_scale(double largest);

/// Gives the trainable tokens of a batch mean 0 and variance 1; an algorithm that `whitens` does so. Gives their deviation before. A batch
/// whose deviation is below `least` is divided by that instead: what hardly differs teaches hardly anything.
double whiten(std::span<const WhitenedTokens> batch, double least);

}  // namespace tandem::algo
