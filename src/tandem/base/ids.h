// SPDX-License-Identifier: Apache-2.0
#pragma once
// Distinct ids are distinct types, so that a step can never be passed where a version is meant.

#include <cstdint>

namespace tandem {

enum class SampleId : int64_t {};       ///< group * group_size + index in the group
enum class GroupId : int64_t {};        ///< position of the group in the stream of prompts; never reused in a run
enum class StepId : int64_t {};         ///< optimizer step, counted from 1
enum class PolicyVersion : int64_t {};  ///< number of optimizer updates the weights have seen

template <class Id>
constexpr int64_t value(Id id) {
  return static_cast<int64_t>(id);
}

}  // namespace tandem
