// SPDX-License-Identifier: Apache-2.0
#pragma once
// The optimizer's state on disk: a file per rank, with a list of the pieces of parameters that are in it. So ranks of another layout,
// be they as many or not, find what they need.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/checkpoint/safetensors.h"
#include "tandem/policy/state_pieces.h"
#include "tandem/train/optimizer_state.h"

namespace tandem::policy {

/// How the name of an optimizer file begins; the number of its rank follows.
inline constexpr std::string_view kOptimizerFile = "optimizer_rank";

/// Writes files below a folder and returns their checksums by their paths in it.
using FileWriter = std::function<Sums(const std::string& dir)>;

/// Of DIR/optimizer_rank<rank>.safetensors: what the state is when it is called, or, with `host`, what it is now, in copies there that
/// go with the writer. The writer's errors: as DurableFile. Errors: as device::Arena.
FileWriter optimizer_writer(int rank, const train::OptimizerState& state, device::Arena* host = nullptr);
/// Of such copies.
int64_t optimizer_copy_bytes(const train::OptimizerState& state);

/// Ownership  opens files as they are needed; this rank's own first, so that under one layout no other is.
/// Threads    one.
/// Errors     UserError naming file or folder: a file is missing, has no list of its pieces, a damaged one or one of a newer format, or
///            no file has what is wanted; PeerError if the disk fails.
class OptimizerFiles {
 public:
  /// Of a checkpoint that `num_ranks` wrote.
  OptimizerFiles(std::string dir, int num_ranks, int rank);

  /// Fills `to` (fp32, flat) with a piece of the state `name`; reads these bytes alone.
  void read(const std::string& name, const train::StatePiece& piece, const at::Tensor& to);

 private:
  struct File {
    checkpoint::SafetensorsFile tensors;
    std::map<std::string, std::vector<Piece>> pieces;  // by parameter
  };
  struct Source {
    int rank;
    std::vector<PieceRun> runs;
  };
  File& file(int rank);
  std::vector<Source> find(const Piece& wanted);

  std::string dir_;
  std::vector<int> ranks_;  // in the order in which they are searched
  std::vector<std::unique_ptr<File>> files_;
  std::pair<std::string, int64_t> last_;  // parameter and begin of what was read last: its states are read one after the other
  std::vector<Source> sources_;
};

}  // namespace tandem::policy
