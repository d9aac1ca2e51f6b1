// SPDX-License-Identifier: Apache-2.0
#include "tandem/monitor/event_record.h"

#include <gtest/gtest.h>

#include <array>

namespace tandem::monitor {
namespace {

std::string decode_base64(const std::string& text) {
  const std::string alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<uint32_t>(alphabet.find(c));
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    out += static_cast<char>(bits >> num_bits & 0xff);
  }
  return out;
}

struct CrcCase {
  const char* base64;
  uint32_t crc, masked;
};

// RFC 3720 B.4 and tensorboard's masked_crc.rs and tf_record.rs (Apache-2.0).
constexpr std::array<CrcCase, 10> kCrcCases = {{
    {"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", 2324772522u, 265814010u},
    {"//////////////////////////////////////////8=", 1655221059u, 4178161705u},
    {"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", 1188919630u, 2501867666u},
    {"Hx4dHBsaGRgXFhUUExIREA8ODQwLCgkIBwYFBAMCAQA=", 289397596u, 1497042263u},
    {"MTIzNDU2Nzg5", 3808858755u, 3347755237u},
    {"GhFDUkMgdGVzdCwgb25lIHR3bw==", 4074330760u, 1469370506u},
    {"", 0u, 2726488792u},
    {"GAAAAAAAAAA=", 1248182244u, 575373219u},
    {"CQAAgDiZ1tdBGg1icmFpbi5FdmVudDoy", 2954691673u, 2872462098u},
    {"CcQFtz2Z1tdBEE0qJQojCghhY2N1cmFjeUIKCAESACIEpHB9P0oLCgkKB3NjYWxhcnM=", 3093743728u, 862215077u},
}};

TEST(EventRecord, ChecksumsAreThoseOfTheRfcAndOfTensorBoard) {
  for (const CrcCase& it : kCrcCases) {
    EXPECT_EQ(crc32c(decode_base64(it.base64)), it.crc) << it.base64;
    EXPECT_EQ(masked_crc32c(decode_base64(it.base64)), it.masked) << it.base64;
  }
}

// Bytes of a file written by TensorFlow's tf.summary.scalar (tensorboard@70b76c92, tf_record.rs, Apache-2.0).
TEST(EventRecord, WritesTheBytesTensorFlowWrites) {
  const std::string wanted = decode_base64(
      "GAAAAAAAAACjf0siCQAAgDiZ1tdBGg1icmFpbi5FdmVudDoyEks2qzIAAAAAAAAAJBlW7AnEBbc9mdbXQRBNKiUKIwoIYWNjdXJhY3lCCggBEgAiBKRwfT9KCwoJCgdz"
      "Y2FsYXJzpVtkMw==");
  // 1599759606.859727 as the file holds it, to the last bit.
  const double wall_time_s = 0x1.7d6993db705c4p+30;
  EXPECT_NEAR(wall_time_s, 1599759606.859727, 1e-6);
  EXPECT_EQ(framed_record(version_event(1599759586.0)) + framed_record(scalar_event(wall_time_s, 77, {{"accuracy", 0.99}})), wanted);
}

}  // namespace
}  // namespace tandem::monitor
