// SPDX-License-Identifier: Apache-2.0
// What processes of a queue send each other. Bytes are a message, or PeerError; a message is the same after it went through bytes once
// more. A desk answers any sequence of calls, and never more than once to the same.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "tandem/base/error.h"
#include "tandem/queue/backend/wire/rows_message.h"
#include "tandem/queue/desk.h"
#include "tandem/queue/message.h"

using namespace tandem;

namespace {

void expect_true(bool right) {
  if (!right) std::abort();
}

template <class Message>
void check_again(const Message& message, std::span<const std::byte> bytes, Message (*read)(std::span<const std::byte>)) {
  const std::vector<std::byte> written = to_bytes(message);
  expect_true(to_bytes(read(written)) == written);
  expect_true(written.size() <= bytes.size() + 4096);  // empty columns are not written where nothing was read
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static queue::Controller controller({.groups_per_step = 4, .group_size = 2, .staleness = 1}, {1, queue::Incarnation{0}});
  static queue::Desk desk(controller, queue::Incarnation{0}, "");
  static double now_s = 0;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const queue::Call call = queue::call_of(bytes);
    check_again(call, bytes, queue::call_of);
    now_s += 0.01;
    (void)desk.answer(call, now_s);
    desk.expire(now_s);
  } catch (const PeerError&) {
  }
  try {
    check_again(queue::answer_of(bytes), bytes, queue::answer_of);
  } catch (const PeerError&) {
  }
  try {
    const queue::wire::RowsRequest request = queue::wire::request_of(bytes);
    expect_true(std::ranges::equal(queue::wire::to_bytes(request), bytes));
  } catch (const PeerError&) {
  }
  for (const bool may_be_lent : {false, true}) try {
      const queue::wire::RowsAnswer answer = queue::wire::rows_answer_of(bytes, 1000, may_be_lent);
      expect_true(answer.num_rows >= 0 && answer.num_rows <= 1000);
      expect_true(answer.rows.empty() || answer.rows.data() + answer.rows.size() == bytes.data() + bytes.size());
    } catch (const PeerError&) {
    }
  return 0;
}
