// SPDX-License-Identifier: Apache-2.0
#pragma once
// TensorBoard's file format: length-and-checksum framed Event messages (tensorflow/core/lib/io/record_writer.h and
// tensorflow/core/util/event.proto). Pure: bytes in, bytes out.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tandem/monitor/recorder.h"

namespace tandem::monitor {

/// CRC-32C (Castagnoli), RFC 3720 section 12.1.
uint32_t crc32c(std::string_view bytes);
/// rotate_right(crc32c, 15) + 0xa282ead8: a checksum that may itself be stored in checksummed data.
uint32_t masked_crc32c(std::string_view bytes);

/// u64 length, its masked checksum, `event`, its masked checksum; little-endian.
std::string framed_record(std::string_view event);
/// Bytes of the length and its checksum, with which a record begins.
inline constexpr int64_t kRecordHead_bytes = 12;
/// Bytes of the whole record that begins with this head; nullopt if it is none.
std::optional<int64_t> record_bytes(std::string_view head);
/// The Event every file begins with. `wall_time_s` counts from the Unix epoch.
std::string version_event(double wall_time_s);
/// One Event with every metric as a rank-0 float32 tensor of the `scalars` plugin, as tf.summary.scalar writes it.
std::string scalar_event(double wall_time_s, int64_t step, const Metrics& metrics);

}  // namespace tandem::monitor
