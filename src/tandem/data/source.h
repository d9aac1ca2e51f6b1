// SPDX-License-Identifier: Apache-2.0
#pragma once
// Prompts by row number, and the order in which training visits the rows.

#include <cstdint>
#include <memory>
#include <string>

#include "tandem/data/options.h"
#include "tandem/data/sample.h"

namespace tandem::data {

/// Threads    const members from any thread.
/// Errors     UserError naming file and line when opened; at() of a row outside [0, size()) is a bug.
class PromptSource {
 public:
  virtual ~PromptSource() = default;
  virtual int64_t size() const = 0;
  /// The prompt without its ids. The same row gives the same prompt, always.
  virtual Prompt at(int64_t row) const = 0;
  virtual const std::string& name() const = 0;
};

enum class Split { kTrain, kHeldOut };

/// Opens what options.train or options.eval names. Errors: UserError; also for a source without rows.
std::unique_ptr<PromptSource> open_source(const Options& options, Split split);

/// Records of a .jsonl file or of a .json array.
std::unique_ptr<PromptSource> open_records(const std::string& path, const Options& options, int64_t max_rows);

/// Additions such as "123+456=" -> "579". A pair of operands (in either order) belongs to training or to evaluation for
/// every seed, so no held-out problem is ever trained on.
std::unique_ptr<PromptSource> open_additions(const Options& options, Split split);
/// Which side of the split a pair is on.
bool is_held_out(int64_t a, int64_t b, double fraction);

/// A new permutation of the rows each epoch, as a pure function of the position: a checkpoint keeps only the position.
class DataOrder {
 public:
  DataOrder(uint64_t seed, int64_t size, bool shuffle = true);
  /// The row at a position of the endless stream of prompts.
  int64_t row(int64_t position) const;
  int64_t epoch(int64_t position) const { return position / size_; }

 private:
  uint64_t seed_;
  int64_t size_;
  bool shuffle_;
  int half_bits_;
};

}  // namespace tandem::data
