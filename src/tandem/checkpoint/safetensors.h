// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads and writes the safetensors format (https://github.com/huggingface/safetensors): an 8-byte little-endian header
// length, a JSON header, then the bytes of all tensors without gaps.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tandem/base/box.h"
#include "tandem/base/file/durable_file.h"

namespace tandem::checkpoint {

struct TensorEntry {
  c10::ScalarType dtype;
  std::vector<int64_t> shape;
  int64_t begin_bytes, end_bytes;  ///< within the data section
};

/// A memory-mapped, fully validated file.
///
/// Ownership  tensors returned by view() are read-only views of the mapping and keep it alive.
/// Errors     UserError naming file and fault (header too long, bad JSON, offsets outside the file, gaps, overlaps, size that
///            does not match shape and dtype) before any byte of a tensor is read.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::map<std::string, TensorEntry>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Errors: UserError if absent, with the nearest name.
  at::Tensor view(const std::string& name) const;
  /// Copies a box of a tensor into `to` (contiguous, of the box's shape, on the CPU), converting the dtype. Reads the bytes of the
  /// box alone and with all compute threads, past the mapping: they are not counted as memory of the process.
  /// Errors: as view(); PeerError if the disk fails or the file has become shorter.
  void read(const std::string& name, const Box& box, at::Tensor to) const;
  /// What read() has read so far.
  int64_t bytes_read() const;
  int64_t file_bytes() const;
  bool contains(const std::string& name) const { return tensors_.count(name) > 0; }
  const std::string& path() const { return path_; }

 private:
  struct Mapping;
  void parse();
  const TensorEntry& entry(const std::string& name) const;
  std::string path_;
  std::shared_ptr<Mapping> mapping_;
  int64_t data_begin_ = 0;
  std::map<std::string, TensorEntry> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// What a file will hold of a tensor besides its values.
struct TensorInfo {
  std::string name;
  c10::ScalarType dtype;
  std::vector<int64_t> shape;
  int64_t num_bytes() const;
};

/// Gives the values of a tensor: contiguous, on the CPU. They are dropped once they are written.
using TensorSource = std::function<at::Tensor(const std::string& name)>;

/// The order in which the format stores tensors: by descending alignment, then by name.
void sort_for_file(std::vector<TensorInfo>& tensors);

/// Writes header and values to an open file, asking for each tensor in the order of the file. Holds one tensor at a time.
/// Errors: as DurableFile, and what `source` throws.
void write_safetensors(DurableFile& file, std::vector<TensorInfo> tensors, const TensorSource& source,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace tandem::checkpoint
