// SPDX-License-Identifier: Apache-2.0
// The manifest of a checkpoint, a byte 0, a file `a` of it, a byte 0, a file `b`: it is whole, it has a fault that can be named, or it
// is refused with a UserError or a PeerError.
#include <cstdint>

#include "folder.h"
#include "tandem/base/error.h"
#include "tandem/checkpoint/run_state.h"

using namespace tandem;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Folder folder;
  std::string_view input(reinterpret_cast<const char*>(data), size);
  folder.write("manifest.json", fuzz::take_part(input));
  folder.write("a", fuzz::take_part(input));
  folder.write("b", input);
  try {
    checkpoint::manifest_fault(folder.path());
  } catch (const UserError&) {
    return 0;
  } catch (const PeerError&) {
    return 0;
  }
  return 0;
}
