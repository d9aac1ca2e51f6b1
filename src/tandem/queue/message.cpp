// SPDX-License-Identifier: Apache-2.0
// A message is its magic number and its fields.
#include "tandem/queue/message.h"

#include "tandem/base/file/bytes.h"
#include "tandem/data/columns.h"
#include "tandem/data/schema.h"

namespace tandem::queue {
namespace {

constexpr int64_t kCallMagic = 0x346c6c6143516454;    // "TdQCall4"
constexpr int64_t kOfAnyVersion = 0x00ffffffffffffff;  // of a magic number: all but its last letter
constexpr int64_t kAnswerMagic = 0x3172776e41516454;  // "TdQAnwr1"

constexpr const char* kMessage = "message of the queue";

}  // namespace

int64_t num_bytes(const data::Group& group) {
  int64_t all = 0;
  for (const data::Sample& s : group.samples)
    data::each_list(s, [&](const auto&, const auto& list) { all += static_cast<int64_t>(list.size() * sizeof(list[0])); });
  return all;
}

std::vector<std::byte> to_bytes(const Call& call) { return packed(kCallMagic, call); }
std::vector<std::byte> to_bytes(const Answer& answer) { return packed(kAnswerMagic, answer); }
Call call_of(std::span<const std::byte> bytes) { return unpacked<Call>(bytes, kMessage, kCallMagic); }

bool is_of_this_version(std::span<const std::byte> bytes) { return ByteReader(bytes, kMessage).number("magic") == kCallMagic; }

Call head_of(std::span<const std::byte> bytes) {
  ByteReader in(bytes, kMessage);
  if (((in.number("magic") ^ kCallMagic) & kOfAnyVersion) != 0) in.fail("it is no call");
  Call head;
  const Unpack unpack{in};
  unpack(head.incarnation), unpack(head.worker), unpack(head.number);
  if (is_of_this_version(bytes)) unpack(head.key);
  return head;
}

Answer answer_of(std::span<const std::byte> bytes) { return unpacked<Answer>(bytes, kMessage, kAnswerMagic); }

}  // namespace tandem::queue
