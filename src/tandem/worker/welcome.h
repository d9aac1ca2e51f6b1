// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a run tells a worker that joins: all that it needs to generate for it but prompts, which come with leases, and weights.

#include <map>
#include <string>
#include <vector>

#include "tandem/pull/weight_source.h"
#include "tandem/queue/body/limits.h"
#include "tandem/reward/rule.h"
#include "tandem/worker/joining.h"

namespace tandem::worker {

/// Under this the weights below adapters are published: they are those of the start, whatever the run has trained by now.
constexpr PolicyVersion kBaseVersion{0};

struct Welcome {
  std::string recipe;                         ///< config::to_yaml of the run
  std::map<std::string, std::string> files;   ///< of the model's directory, but its weights: name and contents
  std::vector<pull::WeightHolder> holders;    ///< of the weights; where adapters are trained, of those below them (kBaseVersion)
  std::vector<pull::WeightHolder> adapters;   ///< of the adapters (model/lora.h), fp32; none where the whole model is trained
  int64_t max_context_tokens = 0;             ///< the longest prompt and response that will be asked for
  std::map<std::string, std::string> reward_files = {};  ///< that its functions and environment are in: the recipe's path, and the digest
  queue::GroupLimits limits = {};             ///< of what it generates
  Drawing drawing = {};                       ///< how it may do so
  static void each(auto& m, auto&& field) {
    field(m.recipe), field(m.files), field(m.holders), field(m.adapters), field(m.max_context_tokens), field(m.reward_files);
    field(m.limits), field(m.drawing);
  }
};

/// Of the functions of a recipe's reward and of `environment`, by the paths that it gives (file_digest).
std::map<std::string, std::string> reward_files(const reward::Options& options, const std::string& environment);

/// Errors: UserError if the files are more than go into a message.
std::string to_text(const Welcome& welcome);
/// Inverse of to_text. Errors: PeerError for a text that is no welcome of this version of Tandem.
Welcome welcome_of(const std::string& text);

/// The files of a model's directory that no weights are in. Errors: UserError if one cannot be read.
std::map<std::string, std::string> small_files(const std::string& model_dir);
/// Writes them into `dir`, which is there. Errors: PeerError for a name that is a path; UserError if one cannot be written.
void write_files(const std::map<std::string, std::string>& files, const std::string& dir);

}  // namespace tandem::worker
