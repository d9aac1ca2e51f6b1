// SPDX-License-Identifier: Apache-2.0
// The queue.bin of a checkpoint: refused with a UserError or a PeerError, or a queue whose state is restored as the same state.
#include <cstdint>
#include <cstdlib>

#include "tandem/base/error.h"
#include "tandem/queue/sample_queue.h"

using namespace tandem;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  queue::Options options;
  options.groups_per_step = 2;
  options.group_size = 2;
  std::vector<std::byte> state;
  try {
    queue::SampleQueue queue(options);
    queue.restore(std::as_bytes(std::span(data, size)));
    state = queue.state();
  } catch (const UserError&) {
    return 0;
  } catch (const PeerError&) {
    return 0;
  }
  queue::SampleQueue again(options);
  again.restore(state);
  if (again.state() != state) std::abort();
  return 0;
}
