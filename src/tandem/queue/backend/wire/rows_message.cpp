// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/backend/wire/rows_message.h"

#include "tandem/base/error.h"
#include "tandem/base/file/bytes.h"

namespace tandem::queue::wire {
namespace {

constexpr int64_t kReadMagic = 0x3264616552516454;  // "TdQRead2"
constexpr const char* kStoreAnswer = "answer of a store";

}  // namespace

std::vector<std::byte> to_bytes(const RowsRequest& request) { return packed(kReadMagic, request); }

RowsRequest request_of(std::span<const std::byte> bytes) { return unpacked<RowsRequest>(bytes, "request of rows", kReadMagic); }

int64_t number_of_answer(std::span<const std::byte> bytes) { return ByteReader(bytes, kStoreAnswer).number("its number"); }

RowsAnswer rows_answer_of(std::span<const std::byte> bytes, int64_t num_samples, bool may_be_lent) {
  ByteReader in(bytes, kStoreAnswer);
  RowsAnswer answer;
  answer.number = in.number("its number");
  answer.num_rows = in.number("the number of rows");
  if (answer.num_rows == 0) return answer;
  if (answer.num_rows < 0 || answer.num_rows > num_samples) in.fail(join_text("it has ", answer.num_rows, " rows of ", num_samples));
  answer.lengths.resize(static_cast<size_t>(in.count(sizeof(int64_t), "the number of lengths")));
  in.raw(answer.lengths.data(), answer.lengths.size() * sizeof(int64_t), "lengths");
  answer.num_bytes = in.number("the number of bytes");
  if (may_be_lent && answer.num_bytes >= kLeastLentBytes) {
    in.raw(&answer.lent.emplace(), sizeof(comm::SharedHandle), "where the rows lie");
  } else {
    answer.rows = in.rest();
    if (std::ssize(answer.rows) != answer.num_bytes) in.fail(join_text(answer.rows.size(), " bytes of ", answer.num_bytes));
  }
  return answer;
}

}  // namespace tandem::queue::wire
