// SPDX-License-Identifier: Apache-2.0
// What holders of weights and those who fetch them send each other. Bytes are a message, or PeerError; a message is the same after it went
// through bytes once more.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "tandem/base/error.h"
#include "tandem/pull/weights_message.h"

using namespace tandem;

namespace {

template <class Message>
void check_again(const Message& message, Message (*read)(std::span<const std::byte>)) {
  const std::vector<std::byte> written = to_bytes(message);
  if (to_bytes(read(written)) != written) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    check_again(pull::weights_request_of(bytes), pull::weights_request_of);
  } catch (const PeerError&) {
  }
  try {
    const pull::WeightsAnswer answer = pull::weights_answer_of(bytes);
    const std::byte *const begin = answer.boxes.data(), *const end = begin + answer.boxes.size();
    if (!answer.boxes.empty() && (begin < bytes.data() || end > bytes.data() + bytes.size())) std::abort();
    check_again(answer, pull::weights_answer_of);
  } catch (const PeerError&) {
  }
  return 0;
}
