// SPDX-License-Identifier: Apache-2.0
// A safetensors file; or, from a `{` on, a config.json, a byte 0, an index, a byte 0, the shard `a`. Refused with a UserError, or
// every byte of every tensor can be read, as it is and as a decoder's weight.
#include <ATen/ops/empty.h>

#include <cstdint>
#include <cstdlib>
#include <numeric>

#include "folder.h"
#include "tandem/base/error.h"
#include "tandem/checkpoint/model_dir.h"

using namespace tandem;

namespace {

volatile unsigned g_sum;

void read_bytes(const at::Tensor& tensor, const checkpoint::TensorEntry& entry) {
  if (static_cast<int64_t>(tensor.nbytes()) != entry.end_bytes - entry.begin_bytes) std::abort();
  if (tensor.nbytes() == 0) return;
  const auto* bytes = static_cast<const uint8_t*>(tensor.const_data_ptr());
  g_sum = std::accumulate(bytes, bytes + tensor.nbytes(), 0u);
}

// The half of a tensor that the second of two ranks owns.
TensorSpec half_of(const std::string& name, const std::vector<int64_t>& shape) {
  TensorSpec spec{name, shape, {std::vector<int64_t>(shape.size(), 0), shape}};
  if (!shape.empty()) spec.box.begin[0] = shape[0] / 2;
  return spec;
}

void read_directory(std::string_view input) {
  static const fuzz::Folder folder;
  folder.write("config.json", fuzz::take_part(input));
  folder.write("model.safetensors.index.json", fuzz::take_part(input));
  folder.write("a", input);
  const checkpoint::ModelDir model(folder.path());
  for (const std::string& name : model.names()) {
    const std::vector<int64_t>& shape = model.entry(name).shape;
    if (shape.size() > 4) continue;  // no family has such a weight
    const TensorSpec spec = half_of(name, shape);
    std::vector<int64_t> extents;
    for (size_t d = 0; d < shape.size(); ++d) extents.push_back(spec.box.extent(d));
    model.read(spec, at::empty(extents, at::kFloat));
  }
  model.require_exactly(model.names());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    if (input.starts_with('{')) return read_directory(input), 0;
    static const fuzz::Folder folder;
    const checkpoint::SafetensorsFile file(folder.write("fuzz", input));
    for (const auto& [name, entry] : file.tensors()) read_bytes(file.view(name), entry);
  } catch (const UserError&) {
    return 0;
  }
  return 0;
}
