// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/body/tensor_cache.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <numeric>
#include <thread>
#include <utility>

#include "tandem/base/clock.h"
#include "tandem/base/error.h"

namespace tandem::queue {
namespace {

constexpr int64_t kNowhere = -1, kUnknown = -1;
constexpr int64_t kAlignment = 8;  // of the widest element

/// In place of the rows: where to read them.
struct Notice {
  comm::SharedHandle handle;
  int64_t at = 0;
};
static_assert(sizeof(Notice) % kAlignment == 0);

}  // namespace

TensorCache::TensorCache(std::vector<CacheField> fields) : fields_(std::move(fields)), by_width_(fields_.size()) {
  for (const CacheField& field : fields_) {
    TANDEM_CHECK(field.part >= 0, "field ", field.name, " of part ", field.part);
    num_parts_ = std::max(num_parts_, field.part + 1);
    widths_.push_back(std::visit([](const auto& values) { return sizeof(values[0]); }, field.type));
  }
  std::iota(by_width_.begin(), by_width_.end(), size_t{0});
  std::ranges::stable_sort(by_width_, std::ranges::greater(), [&](size_t f) { return widths_[f]; });
}

TensorCache::~TensorCache() {
  blocks_.clear();  // what others lent goes back
  const Deadline soon = Deadline::after_s(2);
  while (std::uncaught_exceptions() == 0 && !lanes_.are_free() && !soon.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

size_t TensorCache::field(const std::string& name) const {
  const auto found = std::ranges::find(fields_, name, &CacheField::name);
  TANDEM_CHECK(found != fields_.end(), "no field ", name);
  return static_cast<size_t>(found - fields_.begin());
}

std::byte* TensorCache::Buffer::room(size_t bytes) {
  if (capacity < bytes) {
    capacity = bytes + bytes / 4;  // batches differ: it should fit the next ones, too
    data = std::make_unique_for_overwrite<std::byte[]>(capacity);
  }
  return data.get();
}

size_t TensorCache::slot_of(SampleId id) const {
  const auto found = slots_.find(id);
  TANDEM_CHECK(found != slots_.end(), "sample ", value(id), " is not known");
  return found->second;
}

size_t TensorCache::new_slot(SampleId id) {
  size_t slot = slots_.size() + free_slots_.size();
  if (free_slots_.empty()) {
    lengths_.resize(lengths_.size() + fields_.size());
    at_.resize(lengths_.size());
    block_of_.resize(block_of_.size() + static_cast<size_t>(num_parts_), kNowhere);
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  std::fill_n(lengths_.begin() + static_cast<std::ptrdiff_t>(cell(slot, 0)), fields_.size(), kUnknown);
  slots_.emplace(id, slot);
  return slot;
}

size_t TensorCache::new_block() {
  if (free_blocks_.empty()) {
    blocks_.emplace_back();
    return blocks_.size() - 1;
  }
  const size_t block = free_blocks_.back();
  free_blocks_.pop_back();
  return block;
}

void TensorCache::place(size_t slot, int32_t part, size_t block) {
  int64_t& now = block_of_[slot * static_cast<size_t>(num_parts_) + static_cast<size_t>(part)];
  TANDEM_CHECK(now == kNowhere, "a row is here twice");
  now = static_cast<int64_t>(block);
  ++blocks_[block].num_rows;
}

void TensorCache::release(size_t block) {
  if (--blocks_[block].num_rows > 0) return;
  if (auto* buffer = std::get_if<Buffer>(&blocks_[block].memory)) idle_.push_back(std::move(*buffer));
  blocks_[block].memory = std::monostate();
  free_blocks_.push_back(block);
}

void TensorCache::announce(SampleId id, std::span<const int64_t> lengths) {
  TANDEM_CHECK(lengths.size() == fields_.size(), lengths.size(), " lengths for ", fields_.size(), " fields");
  if (knows(id)) {
    TANDEM_CHECK(std::ranges::equal(lengths, this->lengths(id)), "sample ", value(id), " is announced with other lengths");
    return;
  }
  const size_t first = cell(new_slot(id), 0);
  std::ranges::copy(lengths, lengths_.begin() + static_cast<std::ptrdiff_t>(first));
}

void TensorCache::put(std::span<const SampleId> ids, data::Fields columns) {
  if (ids.empty()) return;
  std::erase_if(columns, [&](const auto& column) { return std::ranges::find(fields_, column.first, &CacheField::name) == fields_.end(); });
  TANDEM_CHECK(columns.size() == fields_.size(), "columns for ", columns.size(), " of ", fields_.size(), " fields");
  TANDEM_CHECK(data::num_rows(columns) == std::ssize(ids), data::num_rows(columns), " rows for ", ids.size(), " samples");
  const size_t block = new_block();
  blocks_[block].memory = std::move(columns);
  const auto& kept = std::get<data::Fields>(blocks_[block].memory);
  std::vector<size_t> slots;
  slots.reserve(ids.size());
  for (SampleId id : ids) {
    const auto known = slots_.find(id);
    slots.push_back(known == slots_.end() ? new_slot(id) : known->second);
    for (int32_t part = 0; part < num_parts_; ++part) place(slots.back(), part, block);
  }
  for (size_t f = 0; f < fields_.size(); ++f) {
    const data::Column& column = kept.at(fields_[f].name);
    TANDEM_CHECK(column.values.index() == fields_[f].type.index(), "field ", fields_[f].name, " has another type");
    const auto* from = std::visit([](const auto& values) { return reinterpret_cast<const std::byte*>(values.data()); }, column.values);
    for (size_t i = 0; i < slots.size(); ++i) {
      const size_t at = cell(slots[i], f);
      TANDEM_CHECK(lengths_[at] == kUnknown || lengths_[at] == column.lengths[i], "sample ", value(ids[i]), " was announced otherwise");
      at_[at] = from;
      lengths_[at] = column.lengths[i];
      from += column.lengths[i] * static_cast<int64_t>(widths_[f]);
    }
  }
}

bool TensorCache::holds(data::RowPart row) const {
  const auto found = slots_.find(row.sample);
  return found != slots_.end() && block_of_[found->second * static_cast<size_t>(num_parts_) + static_cast<size_t>(row.part)] != kNowhere;
}

std::span<const int64_t> TensorCache::lengths(SampleId id) const {
  return std::span(lengths_).subspan(cell(slot_of(id), 0), fields_.size());
}

int64_t TensorCache::num_bytes(data::RowPart row) const {
  const size_t slot = slot_of(row.sample);
  int64_t bytes = 0;
  for (size_t f = 0; f < fields_.size(); ++f)
    if (fields_[f].part == row.part) bytes += lengths_[cell(slot, f)] * static_cast<int64_t>(widths_[f]);
  return bytes;
}

int64_t TensorCache::num_held() const {
  return std::ranges::count_if(slots_, [&](const auto& each) {
    const auto blocks = std::span(block_of_).subspan(each.second * static_cast<size_t>(num_parts_), static_cast<size_t>(num_parts_));
    return std::ranges::any_of(blocks, [](int64_t block) { return block != kNowhere; });
  });
}

template <class Take>
void TensorCache::each_field(const Pair& rows, Take take) const {
  for (size_t f : by_width_)
    for (const data::RowPart& row : rows) {
      if (row.part != fields_[f].part) continue;
      const size_t at = cell(slot_of(row.sample), f);
      take(at, static_cast<size_t>(lengths_[at]) * widths_[f]);
    }
}

int64_t TensorCache::padded_bytes(const Pair& rows, int64_t& payload) const {
  int64_t bytes = 0;
  for (const data::RowPart& row : rows) bytes += num_bytes(row);
  payload += bytes;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

RowsMoved TensorCache::move(comm::Group& group, std::span<const data::RowMove> plan) {
  RowsMoved moved;
  if (plan.empty()) return moved;
  TANDEM_CHECK(group.device().is_cpu(), "the rows of a cache are in host memory");
  const auto ranks = static_cast<size_t>(group.size());
  std::vector<Pair> out(ranks), in(ranks);
  for (const data::RowMove& m : plan) {
    TANDEM_CHECK(m.from != m.to, "sample ", value(m.row.sample), " moves to where it is");
    if (m.from == group.rank()) out.at(static_cast<size_t>(m.to)).push_back(m.row);
    if (m.to == group.rank()) in.at(static_cast<size_t>(m.from)).push_back(m.row);
  }
  std::vector<int64_t> send(ranks), receive(ranks);  // bytes of rows, then of messages
  int64_t lent_bytes = 0, num_borrowers = 0;
  for (size_t r = 0; r < ranks; ++r) {
    send[r] = padded_bytes(out[r], moved.sent_bytes);
    receive[r] = padded_bytes(in[r], moved.received_bytes);
    if (lends(r, send[r])) lent_bytes += send[r], ++num_borrowers;
  }
  comm::SharedMemory* lane = num_borrowers > 0 ? &lanes_.free_lane(lent_bytes) : nullptr;
  std::vector<Notice> notices(ranks);
  std::vector<bool> borrowed(ranks);
  std::vector<int64_t> rows_to(send);
  int64_t lane_at = 0;
  for (size_t r = 0; r < ranks; ++r) {
    for (const data::RowPart& row : out[r]) TANDEM_CHECK(holds(row), "sample ", value(row.sample), " is to be sent and is not here");
    if (lends(r, send[r])) {
      TANDEM_CHECK(lane_at + send[r] <= std::ssize(lane->bytes()), "rows of ", lent_bytes, " bytes are lent in ", lane->bytes().size());
      pack_rows(out[r], lane->bytes().subspan(static_cast<size_t>(lane_at), static_cast<size_t>(send[r])));
      notices[r] = {lane->handle(), lane_at};
      lane_at += std::exchange(send[r], static_cast<int64_t>(sizeof(Notice)));
    }
    borrowed[r] = borrows(r, receive[r]);
    if (borrowed[r]) receive[r] = sizeof(Notice);
  }
  const auto send_bytes = static_cast<size_t>(std::accumulate(send.begin(), send.end(), int64_t{0}));
  const auto receive_bytes = static_cast<size_t>(std::accumulate(receive.begin(), receive.end(), int64_t{0}));

  std::byte* const packed = send_.room(send_bytes);
  std::byte* to = packed;
  for (size_t r = 0; r < ranks; to += send[r++])
    if (lends(r, rows_to[r])) std::memcpy(to, &notices[r], sizeof(Notice));
    else pack_rows(out[r], {to, static_cast<size_t>(send[r])});
  if (lane) lane->lend(num_borrowers);
  Buffer arrived;
  if (!idle_.empty()) arrived = std::move(idle_.back()), idle_.pop_back();
  const std::byte* from = arrived.room(receive_bytes);
  group.all_to_all_v({packed, send_bytes}, send, {arrived.room(receive_bytes), receive_bytes}, receive);

  const size_t block = new_block();
  blocks_[block].memory = std::move(arrived);
  blocks_[block].num_rows = 1;  // until they are placed
  for (size_t r = 0; r < ranks; from += receive[r++]) {
    if (!borrowed[r]) {
      place_rows(in[r], from, block);
      continue;
    }
    Notice notice;
    std::memcpy(&notice, from, sizeof notice);
    const std::shared_ptr<comm::BorrowedMemory> memory = borrow(r, notice.handle);
    const size_t lent = new_block();
    blocks_[lent].memory = comm::until_given_back(memory);
    blocks_[lent].num_rows = 1;
    place_rows(in[r], memory->bytes().data() + notice.at, lent);
    release(lent);
  }
  release(block);
  return moved;
}

void TensorCache::share_memory(comm::Group& group, int64_t least_bytes) {
  least_shared_bytes_ = std::max<int64_t>(1, least_bytes);
  const std::vector<std::vector<bool>> can = comm::who_shares(group);
  const auto me = static_cast<size_t>(group.rank());
  borrows_ = can[me];
  lends_.clear();
  for (const std::vector<bool>& of_rank : can) lends_.push_back(of_rank[me]);
  known_.assign(can.size(), {});
}

bool TensorCache::lends(size_t to, int64_t bytes) const { return !lends_.empty() && bytes >= least_shared_bytes_ && lends_[to]; }
bool TensorCache::borrows(size_t from, int64_t bytes) const { return !borrows_.empty() && bytes >= least_shared_bytes_ && borrows_[from]; }

void TensorCache::pack_rows(const Pair& rows, std::span<std::byte> to) const {
  std::byte* at_now = to.data();
  each_field(rows, [&](size_t at, size_t bytes) {
    if (bytes > 0) std::memcpy(at_now, at_[at], bytes);
    at_now += bytes;
  });
  std::memset(at_now, 0, static_cast<size_t>(to.data() + to.size() - at_now));
}

void TensorCache::place_rows(const Pair& rows, const std::byte* from, size_t block) {
  for (const data::RowPart& row : rows) place(slot_of(row.sample), row.part, block);
  each_field(rows, [&](size_t at, size_t bytes) { at_[at] = from, from += bytes; });
}

std::shared_ptr<comm::BorrowedMemory> TensorCache::borrow(size_t from, const comm::SharedHandle& handle) {
  auto& known = known_[from];
  for (const auto& [serial, memory] : known)
    if (serial == handle.serial) return memory;
  std::erase_if(known, [](const auto& each) { return each.second.use_count() == 1; });  // most likely gone there, too
  std::shared_ptr<comm::BorrowedMemory> memory = comm::BorrowedMemory::map(handle);
  if (!memory) throw PeerError(join_text("rank ", from, " lent memory that cannot be mapped here any more"));
  return known.emplace_back(handle.serial, std::move(memory)).second;
}

int64_t TensorCache::schema() const {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  const auto mix = [&](uint64_t byte) { hash = (hash ^ byte) * 0x100000001b3; };
  for (const CacheField& field : fields_) {
    for (const char c : field.name) mix(static_cast<unsigned char>(c));
    mix(0x100 + field.type.index()), mix(0x200 + static_cast<uint64_t>(field.part));
  }
  return static_cast<int64_t>(hash);
}

TensorCache::Pair TensorCache::whole(std::span<const SampleId> ids) const {
  Pair rows;
  rows.reserve(ids.size() * static_cast<size_t>(num_parts_));
  for (const SampleId id : ids)
    for (int32_t part = 0; part < num_parts_; ++part) rows.push_back({id, part});
  return rows;
}

int64_t TensorCache::packed_bytes(std::span<const SampleId> ids) const {
  int64_t payload = 0;
  return padded_bytes(whole(ids), payload);
}

void TensorCache::pack(std::span<const SampleId> ids, std::span<std::byte> to) const {
  const Pair rows = whole(ids);
  for (const data::RowPart& row : rows) TANDEM_CHECK(holds(row), "sample ", value(row.sample), " is to be packed and is not here");
  int64_t payload = 0;
  TANDEM_CHECK(std::ssize(to) == padded_bytes(rows, payload), "rows of ", payload, " bytes in ", to.size());
  pack_rows(rows, to);
}

bool TensorCache::adopt(std::span<const SampleId> ids, std::span<const int64_t> lengths, std::span<const std::byte> rows,
                        std::shared_ptr<const void> memory) {
  const bool is_aligned = reinterpret_cast<uintptr_t>(rows.data()) % kAlignment == 0;
  if (ids.empty() || lengths.size() != ids.size() * fields_.size() || !is_aligned) return false;
  int64_t left = std::ssize(rows);
  for (size_t i = 0; i < lengths.size(); ++i) {
    const auto width = static_cast<int64_t>(widths_[i % fields_.size()]);
    if (lengths[i] < 0 || lengths[i] > left / width) return false;
    left -= lengths[i] * width;
  }
  if (left >= kAlignment) return false;
  drop(ids);
  for (size_t i = 0; i < ids.size(); ++i) announce(ids[i], lengths.subspan(i * fields_.size(), fields_.size()));
  const size_t block = new_block();
  blocks_[block].memory = std::move(memory);
  place_rows(whole(ids), rows.data(), block);
  return true;
}

void TensorCache::drop(std::span<const SampleId> ids) {
  for (SampleId id : ids) {
    const auto found = slots_.find(id);
    if (found == slots_.end()) continue;
    const size_t slot = found->second;
    slots_.erase(found);
    free_slots_.push_back(slot);
    for (int64_t& block : std::span(block_of_).subspan(slot * static_cast<size_t>(num_parts_), static_cast<size_t>(num_parts_)))
      if (block != kNowhere) release(static_cast<size_t>(std::exchange(block, kNowhere)));
  }
}

}  // namespace tandem::queue
