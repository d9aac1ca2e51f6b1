// SPDX-License-Identifier: Apache-2.0
#pragma once
// A trained role in the formats of others: a Hugging Face directory, and with LoRA a PEFT adapter.

#include <map>
#include <string>
#include <vector>

#include "tandem/policy/optimizer_files.h"
#include "tandem/policy/trained_role.h"

namespace tandem::policy {

/// Threads    one per rank.
class Exporter {
 public:
  /// `model_dir` is where the run started; its links are resolved now. Rank 0 now reads what goes into every export: the tokenizer's
  /// files and the chat template of the recipe. Whoever changes or removes them later changes no export and ends no run.
  /// Errors: UserError naming what cannot be read.
  Exporter(const config::RunConfig& config, const Ranks& ranks, std::string model_dir);

  /// Rank 0 writes `dir`/hf, tensor by tensor, its weights last. With LoRA it first writes `dir`/adapter, which PEFT loads on top of the
  /// start, and merges the adapters into `dir`/hf. Returns the checksums there; elsewhere there are none. Collective over
  /// `group`, which has the ranks of the world. Errors: PeerError, on all ranks alike, naming the path, or a rank without memory for it.
  Sums write(const std::string& dir, const TrainedRole& role, comm::Group& group) const;
  /// What writes the same, of the role as it is now, without the other ranks: rank 0 has copies in `host`, which go with it, and others
  /// write nothing. Collective. Errors: PeerError, on all ranks alike, where rank 0 has no memory for it.
  FileWriter copy(const TrainedRole& role, device::Arena& host) const;
  /// Of such copies, on rank 0, with what gathers them.
  int64_t copy_bytes(const TrainedRole& role) const;

  /// Without links.
  const std::string& model_dir() const { return model_dir_; }

 private:
  struct Stream;
  struct Part;
  Part model_part(const TrainedRole& role) const;
  Part adapter_part(const TrainedRole& role) const;
  std::vector<Part> parts_of(const TrainedRole& role) const;

  const config::RunConfig& config_;
  const Ranks& ranks_;
  std::string model_dir_;
  std::map<std::string, std::string> files_;
};

/// Whether `dir` holds a whole model that write() has left there: a model has its weights last.
bool holds_model(const std::string& dir);

}  // namespace tandem::policy
