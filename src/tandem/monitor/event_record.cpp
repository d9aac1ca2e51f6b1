// SPDX-License-Identifier: Apache-2.0
#include "tandem/monitor/event_record.h"

#include <array>
#include <bit>

namespace tandem::monitor {
namespace {

constexpr std::array<uint32_t, 256> make_crc_table() {
  constexpr uint32_t kReversedPolynomial = 0x82f63b78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kReversedPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}
constexpr auto kCrcTable = make_crc_table();

template <class Unsigned>
void append_fixed(std::string& out, Unsigned value) {
  for (size_t byte = 0; byte < sizeof value; ++byte) out += static_cast<char>((value >> (8 * byte)) & 0xff);
}

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7f) | 0x80);
  out += static_cast<char>(value);
}

enum class Wire : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2 };

void append_key(std::string& out, uint32_t field, Wire wire) { append_varint(out, field << 3 | static_cast<uint32_t>(wire)); }

void append_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  append_key(out, field, Wire::kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

std::string event_start(double wall_time_s) {
  std::string event;
  append_key(event, 1, Wire::kFixed64);
  append_fixed(event, std::bit_cast<uint64_t>(wall_time_s));
  return event;
}

// TensorProto: 1 = dtype (1 is float32), 2 = shape (empty: rank 0), 4 = content, little-endian.
std::string scalar_tensor(float value) {
  std::string tensor, content;
  append_key(tensor, 1, Wire::kVarint);
  append_varint(tensor, 1);
  append_bytes(tensor, 2, "");
  append_fixed(content, std::bit_cast<uint32_t>(value));
  append_bytes(tensor, 4, content);
  return tensor;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = 0xffffffff;
  for (const char byte : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<uint8_t>(byte)) & 0xff];
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8u; }

std::string framed_record(std::string_view event) {
  std::string record;
  append_fixed(record, static_cast<uint64_t>(event.size()));
  append_fixed(record, masked_crc32c(record));
  record += event;
  append_fixed(record, masked_crc32c(event));
  return record;
}

std::optional<int64_t> record_bytes(std::string_view head) {
  if (std::ssize(head) < kRecordHead_bytes) return std::nullopt;
  uint64_t length = 0;
  for (size_t byte = sizeof length; byte-- > 0;) length = length << 8 | static_cast<unsigned char>(head[byte]);
  std::string checksum;
  append_fixed(checksum, masked_crc32c(head.substr(0, sizeof length)));
  if (head.substr(sizeof length, checksum.size()) != checksum || length > (uint64_t{1} << 40)) return std::nullopt;
  return kRecordHead_bytes + static_cast<int64_t>(length + checksum.size());
}

std::string version_event(double wall_time_s) {
  std::string event = event_start(wall_time_s);
  append_bytes(event, 3, "brain.Event:2");
  return event;
}

std::string scalar_event(double wall_time_s, int64_t step, const Metrics& metrics) {
  std::string plugin, metadata, summary;
  append_bytes(plugin, 1, "scalars");
  append_bytes(metadata, 1, plugin);
  for (const auto& [tag, number] : metrics) {
    std::string value;
    append_bytes(value, 1, tag);
    append_bytes(value, 8, scalar_tensor(static_cast<float>(number)));
    append_bytes(value, 9, metadata);
    append_bytes(summary, 1, value);
  }
  std::string event = event_start(wall_time_s);
  append_key(event, 2, Wire::kVarint);
  append_varint(event, static_cast<uint64_t>(step));
  append_bytes(event, 5, summary);
  return event;
}

}  // namespace tandem::monitor
