// SPDX-License-Identifier: Apache-2.0
#pragma once
// The algorithm of a run as its recipe spells it; algorithm.h has it as a value.

#include <string>
#include <vector>

#include "tandem/base/options.h"

namespace tandem::algo {

/// Algorithm as the configuration spells it.
struct Options {
  std::string name = "grpo";
  std::string advantage = "grpo";
  double gamma = 1;
  double lambda = 1;
  std::string whiten = "auto";
  double whiten_floor = 0.1;
  std::string loss = "clip";
  double clip_low = 0.2;
  double clip_high = 0.2;
  double clip_dual = 3;
  double sapo_tau_positive = 1;
  double sapo_tau_negative = 1.05;
  double kl_coef = 0;
  bool kl_in_reward = false;
  double kl_target = 0;
  double kl_horizon = 10000;
  std::string kl_estimator = "k3";
  double kl_cut = 0;
  bool kl_weighted = false;
  double entropy_coef = 0;
  std::string correction = "auto";
  std::string correction_outside = "truncate";
  double correction_lower = 0;
  double correction_upper = 2;
  bool correction_normalize = false;
  std::string rejection;
  std::string rejection_bounds;
  double off_policy_delta = 0;
  bool mask_truncated = false;
  bool filter_groups = false;
  int64_t max_filter_rounds = 10;
  int64_t mini_batches = 1;
  int64_t epochs = 1;
  double max_kl = 0;
  std::string aggregation = "seq-mean-token-mean";
  double scale_tokens = 1024;

  /// Whether each prompt gets a greedy answer beside its samples.
  bool compares_with_greedy() const { return advantage == "remax"; }
  /// Whether a group of one sample tells it how good it is.
  bool allows_single_samples() const {
    return advantage == "remax" || advantage == "reinforce_pp" || advantage == "gae" || advantage == "distillation";
  }
};
void describe(OptionVisitor& field, Options& o);

/// Whether a value of `advantage` or `loss` names a function of the user's, FILE.py:FUNCTION. The algorithm is then one whose advantages,
/// or loss, that function gives: those of grpo stand in their place.
bool names_function(const std::string& value);

/// Names of the published algorithms that are values of Options.
std::vector<std::string> algorithm_names();
/// The settings of a published algorithm; a configuration starts from them and changes what it names.
/// Errors: UserError with the nearest name.
Options named_algorithm(const std::string& name);
/// Errors: UserError for an unknown word.
void check_words(const Options& options);

}  // namespace tandem::algo
