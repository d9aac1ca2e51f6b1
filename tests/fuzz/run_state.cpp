// SPDX-License-Identifier: Apache-2.0
// The state.json of a checkpoint: refused as StateFiles::load refuses it, or a state that is written and read back as the same state.
#include "tandem/runtime/folder/run_state.cpp"  // its readers are its own

#include <cstdint>

#include "folder.h"

namespace {

int read(const std::string& path) {
  using namespace tandem::runtime;
  json j;
  RunState state;
  try {
    j = read_state(path);
    state = from_json(j);
  } catch (const tandem::UserError&) {
    return 0;
  } catch (const json::exception&) {  // load() says where
    return 0;
  }
  const json written = to_json(state, StartModel{});
  if (to_json(from_json(json::parse(written.dump(1))), StartModel{}) != written) std::abort();
  return 0;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tandem::fuzz::Folder folder;
  return read(folder.write("state.json", {reinterpret_cast<const char*>(data), size}));
}
