// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads and writes the safetensors format (https://github.com/huggingface/safetensors): an 8-byte little-endian header
// length, a JSON header, then the bytes of all tensors without gaps.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

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
  /// Validates a file already in memory; `name` is used in errors. The bytes are copied.
  SafetensorsFile(std::span<const std::byte> bytes, const std::string& name);

  const std::map<std::string, TensorEntry>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Errors: UserError if absent, with the nearest name.
  at::Tensor view(const std::string& name) const;
  bool contains(const std::string& name) const { return tensors_.count(name) > 0; }
  const std::string& path() const { return path_; }

 private:
  struct Mapping;
  void parse();
  std::string path_;
  std::shared_ptr<Mapping> mapping_;
  int64_t data_begin_ = 0;
  std::map<std::string, TensorEntry> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// Writes tensors (contiguous CPU; any order, written by descending alignment then name as the format asks), then fsyncs.
/// Errors: PeerError naming the path when the disk is full or unwritable; a partial file is removed.
void write_safetensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace tandem::checkpoint
