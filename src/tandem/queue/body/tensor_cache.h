// SPDX-License-Identifier: Apache-2.0
#pragma once
// Batches stay where they were born: the rows of samples that this rank holds, field by field, without padding. Stages read them in
// place. Where two stages lay a batch out differently, a row plan and one exchange move what must move.
//
//   cache.put(ids, columns)              what this rank made; the columns are moved in
//   cache.announce(id, lengths)          rows of others, so that both sides know the bytes
//   cache.move(world, plan_rows(...))    the rows that the next stage wants here
//   cache.read<float>(id, field)         in place
//   cache.drop(ids)                      the batch is trained

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "tandem/base/check.h"
#include "tandem/comm/shared_memory.h"
#include "tandem/data/columns.h"
#include "tandem/data/row_plan.h"
#include "tandem/queue/body/body.h"

namespace tandem::queue {

/// What one move did on this rank.
struct RowsMoved {
  int64_t sent_bytes = 0, received_bytes = 0;  ///< of rows; the exchange adds at most 7 bytes for each pair of ranks
};

/// Ownership  columns are moved in. Rows from other ranks lie in a buffer of the cache, which it uses again once they are dropped.
///            A span that read() gave is valid until its sample is dropped.
/// Threads    one.
/// Blocking   move and share_memory wait for peers, at most the group's deadline; the destructor for at most 2 s, unless an error ends it.
/// Errors     InternalError for a row that is not here, or twice; PeerError from the group.
/// Read next  data/row_plan.h, docs/design/tensor_cache.md
class TensorCache {
 public:
  explicit TensorCache(std::vector<CacheField> fields);
  /// Waits a moment for those that are still to read what it lent.
  ~TensorCache();
  TensorCache(const TensorCache&) = delete;
  TensorCache& operator=(const TensorCache&) = delete;

  /// From now on ranks of one machine read each other's rows in place, where the system lets them. A pair that moves fewer bytes than
  /// `least_bytes` sends a message, which is as quick. Collective over `group`, that of move().
  void share_memory(comm::Group& group, int64_t least_bytes = 64 << 10);

  const std::vector<CacheField>& fields() const { return fields_; }
  size_t num_fields() const { return fields_.size(); }
  int32_t num_parts() const { return num_parts_; }
  size_t field(const std::string& name) const;

  /// Rows made here, in the order of `ids`: one column for each field, others are left out.
  void put(std::span<const SampleId> ids, data::Fields columns);
  /// Entries of each field of a row, wherever it is. A row that is known keeps what it has.
  void announce(SampleId id, std::span<const int64_t> lengths);

  bool knows(SampleId id) const { return slots_.contains(id); }
  bool holds(data::RowPart row) const;
  /// Of a row that is known.
  std::span<const int64_t> lengths(SampleId id) const;
  int64_t num_bytes(data::RowPart row) const;
  /// The entries of a field that is here.
  template <class T>
  std::span<const T> read(SampleId id, size_t field) const;
  /// Samples with a row here.
  int64_t num_held() const;

  /// Sends and receives the rows of the plan in one all_to_all_v, or none if it is empty. Ranks that share memory tell each other where
  /// the rows lie. Collective over `group`: all pass the same plan, and each rank that it names knows the lengths of its rows.
  RowsMoved move(comm::Group& group, std::span<const data::RowMove> plan);

  /// Of caches that have the same fields.
  int64_t schema() const;
  /// What pack writes for these samples; a multiple of 8.
  int64_t packed_bytes(std::span<const SampleId> ids) const;
  /// The rows of these samples end to end, for adopt elsewhere. `to` has packed_bytes.
  void pack(std::span<const SampleId> ids, std::span<std::byte> to) const;
  /// Takes `rows` that a cache of the same schema packed, where they lie; `memory` keeps them until the last is dropped. `lengths`: of each
  /// field, one sample after the other. What is here of these samples goes. False, and nothing is done, if they do not fit each other.
  bool adopt(std::span<const SampleId> ids, std::span<const int64_t> lengths, std::span<const std::byte> rows,
             std::shared_ptr<const void> memory);

  /// Forgets rows, here or announced. Those that are not known are passed over.
  void drop(std::span<const SampleId> ids);

 private:
  struct Buffer {
    std::unique_ptr<std::byte[]> data;
    size_t capacity = 0;
    std::byte* room(size_t bytes);
  };
  /// Memory that rows lie in, until the last of them is dropped.
  struct Block {
    std::variant<std::monostate, data::Fields, Buffer, std::shared_ptr<const void>> memory;
    int64_t num_rows = 0;
  };
  using Pair = std::vector<data::RowPart>;  // what one rank sends another

  size_t slot_of(SampleId id) const;
  size_t new_slot(SampleId id);
  size_t cell(size_t slot, size_t field) const { return slot * fields_.size() + field; }
  size_t new_block();
  void place(size_t slot, int32_t part, size_t block);
  void release(size_t block);
  /// Each field of each row that a pair moves, in the order they travel: wide elements first, so that each is aligned.
  template <class Take>
  void each_field(const Pair& rows, Take take) const;
  Pair whole(std::span<const SampleId> ids) const;
  int64_t padded_bytes(const Pair& rows, int64_t& payload) const;
  bool lends(size_t to, int64_t bytes) const;
  bool borrows(size_t from, int64_t bytes) const;
  void pack_rows(const Pair& rows, std::span<std::byte> to) const;
  void place_rows(const Pair& rows, const std::byte* from, size_t block);
  std::shared_ptr<comm::BorrowedMemory> borrow(size_t from, const comm::SharedHandle& handle);

  std::vector<CacheField> fields_;
  std::vector<size_t> widths_;             // bytes of an element, by field
  std::vector<size_t> by_width_;           // fields, the widest elements first
  int32_t num_parts_ = 1;
  std::unordered_map<SampleId, size_t> slots_;
  std::vector<size_t> free_slots_;
  std::vector<int64_t> lengths_;           // by slot and field
  std::vector<const std::byte*> at_;       // by slot and field
  std::vector<int64_t> block_of_;          // by slot and part; -1: not here
  std::vector<Block> blocks_;
  std::vector<size_t> free_blocks_;
  std::vector<Buffer> idle_;               // receive buffers whose rows are gone
  Buffer send_;
  std::vector<bool> lends_, borrows_;      // by rank; empty: nothing is shared
  int64_t least_shared_bytes_ = 0;
  comm::SharedLanes lanes_;
  // By rank: memory that was mapped, by its serial.
  std::vector<std::vector<std::pair<int64_t, std::shared_ptr<comm::BorrowedMemory>>>> known_;
};

template <class T>
std::span<const T> TensorCache::read(SampleId id, size_t field) const {
  const size_t slot = slot_of(id), at = cell(slot, field);
  TANDEM_CHECK(std::holds_alternative<std::vector<T>>(fields_[field].type), "field ", fields_[field].name, " has another type");
  TANDEM_CHECK(holds({id, fields_[field].part}), "field ", fields_[field].name, " of sample ", value(id), " is not here");
  return {reinterpret_cast<const T*>(at_[at]), static_cast<size_t>(lengths_[at])};
}

}  // namespace tandem::queue
