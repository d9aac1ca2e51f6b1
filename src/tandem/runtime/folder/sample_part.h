// SPDX-License-Identifier: Apache-2.0
#pragma once
// The samples of a step as one of the ranks that trained them has them. It leaves them in a file of the run folder, where the first rank's
// writer finds them:
//
//   RUN_DIR/samples.d/STEP.RANK    until its rows are in samples.sqlite

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tandem/data/sample.h"

namespace tandem::runtime {

/// A plain value.
struct SamplePart {
  std::vector<data::Group> groups;                 ///< with bodies; a group may lack samples, and its prompt without the first of them
  std::vector<std::vector<float>> train_logprobs;  ///< one vector per sample, in their order
};

/// Where parts lie. The first rank makes it.
std::string parts_dir(const std::string& run_dir);
/// `rank` is that of the world.
std::string part_file(const std::string& run_dir, data::StepId step, int rank);

std::vector<std::byte> pack(const SamplePart& part);
/// Inverse of pack. Errors: PeerError saying what is wrong.
SamplePart unpack_part(std::span<const std::byte> bytes);

/// A file of what pack gave. It need not outlive the machine: a checkpoint counts on samples.sqlite. Errors: PeerError naming the path; then
/// there is no such file.
void write_part(const std::string& path, std::span<const std::byte> bytes);
/// Errors: PeerError naming the path.
SamplePart read_part(const std::string& path);

}  // namespace tandem::runtime
