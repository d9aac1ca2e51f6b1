// SPDX-License-Identifier: Apache-2.0
#pragma once
// The nouns every stage shares: a Prompt becomes a Group of Samples; B groups make the Batch of one step.
//
//   Prompt "12+30="  ->  Group 7 { Sample 56 "42", Sample 57 "43", ... }  ->  Batch of step 3
//
// Plain values: no tensors, no threads. Everything a sample carries is here or in its columns (columns.h).

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tandem/base/ids.h"

namespace tandem::data {

using tandem::GroupId;
using tandem::PolicyVersion;
using tandem::SampleId;
using tandem::StepId;

struct Prompt {
  int64_t row = 0;              ///< number of its record in its data set, from 0
  std::string text;             ///< as the model sees it
  std::vector<int32_t> ids;     ///< its tokens
  std::string answer;           ///< what the reward compares with
  std::string data_source;      ///< name of the data set it came from
  std::string columns;          ///< the fields of its record, the question's among them, one JSON object; "" if none are kept
  double rank = 0;              ///< its place in a curriculum
  std::string messages;         ///< what the text is rendered from: {"messages":[], "tools":[]} as JSON; "" for a plain text
};

/// Why a sample ended. The engine gives the first two; kAborted is what a stored sample of another kind of end is read as.
enum class FinishReason : int32_t { kStop = 0, kLength = 1, kAborted = 2 };
/// As files and the page have them.
inline constexpr std::array<std::string_view, 3> kFinishNames = {"stop", "length", "aborted"};
inline std::string_view finish_name(FinishReason reason) { return kFinishNames[static_cast<size_t>(reason)]; }

struct Sample {
  SampleId id{};
  std::vector<int32_t> ids;         ///< response tokens
  std::vector<float> logprobs;      ///< one per response token: log_softmax(logits / T)[token] over the full vocabulary
  std::vector<float> kept_mass;     ///< log of the mass top-k/top-p kept, one per token; empty when both are off
  std::vector<float> doubt;         ///< 1 - the probability of each drawn token; 0 where the policy chose none; empty in older samples
  std::vector<int64_t> versions;    ///< policy version that sampled each token
  std::vector<uint8_t> trainable;   ///< 0 for each token that the policy did not choose, as what an environment says; empty: it chose all
  std::vector<int16_t> routes;      ///< experts of each token that went through the model (all but the last): model::Decoder::route_width
                                    ///< per token, -1 where none was asked for; empty where they are not recorded
  FinishReason finish = FinishReason::kStop;
  std::string text;                 ///< detokenized response
  bool scored = false;
  double score = 0;                 ///< weighted sum of the parts
  std::vector<std::pair<std::string, double>> parts;  ///< every part of the reward by name, unweighted
};

struct Group {
  GroupId id{};
  Prompt prompt;
  PolicyVersion version{};          ///< version of its first token
  std::vector<Sample> samples;
  std::optional<Sample> greedy = {};  ///< the answer at temperature 0, where samples are compared with it; scored, never trained on
};

struct Batch {
  StepId step{};
  PolicyVersion version{};          ///< version before the update that trains it
  std::vector<Group> groups;        ///< ordered by group id
};

/// Where the policy began to speak last: behind the last token of an environment.
inline size_t last_turn_begin(const Sample& sample) {
  size_t begin = sample.trainable.size();
  while (begin > 0 && sample.trainable[begin - 1]) --begin;
  return begin;
}

inline SampleId sample_id(GroupId group, int64_t group_size, int64_t index) {
  return SampleId{value(group) * group_size + index};
}
inline GroupId group_of(SampleId sample, int64_t group_size) { return GroupId{value(sample) / group_size}; }

/// Updates between the first token of `group` and the update that trains it.
inline int64_t lag(const Group& group, PolicyVersion before_update) { return value(before_update) - value(group.version); }

}  // namespace tandem::data
