// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a reader and a store say to each other, as values and as bytes.
//
//   request   magic, its number, the schema, a secret or 0, ids
//   answer    the number of the request; how many of the first rows it has, 0 if one is not here; their lengths; how many bytes they have;
//             then they, or where they lie in shared memory

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tandem/base/ids.h"
#include "tandem/comm/shared_handle.h"

namespace tandem::queue::wire {

/// Rows of fewer bytes are as quick in a message.
constexpr int64_t kLeastLentBytes = 64 << 10;

struct RowsRequest {
  int64_t number = 0;
  int64_t schema = 0;     ///< TensorCache::schema of the reader
  int64_t secret = 0;     ///< to stand at the beginning of shared memory; 0: the reader maps none
  std::vector<SampleId> samples;
  static void each(auto& m, auto&& field) { field(m.number), field(m.schema), field(m.secret), field(m.samples); }
};
std::vector<std::byte> to_bytes(const RowsRequest& request);
/// Inverse of to_bytes. Errors: PeerError for bytes that are no request; it never reads outside `bytes`.
RowsRequest request_of(std::span<const std::byte> bytes);

struct RowsAnswer {
  int64_t number = 0;
  int64_t num_rows = 0;
  std::vector<int64_t> lengths;              ///< of each field, one row after the other
  int64_t num_bytes = 0;
  std::span<const std::byte> rows;           ///< in place; none if they are lent
  std::optional<comm::SharedHandle> lent;
};
/// Of an answer, without reading all of it. Errors: as rows_answer_of.
int64_t number_of_answer(std::span<const std::byte> bytes);
/// To a request for so many samples, whose reader maps memory or not. Errors: PeerError for bytes that are no answer to it; it never reads
/// outside `bytes`.
RowsAnswer rows_answer_of(std::span<const std::byte> bytes, int64_t num_samples, bool may_be_lent);

}  // namespace tandem::queue::wire
