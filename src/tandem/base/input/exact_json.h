// SPDX-License-Identifier: Apache-2.0
#pragma once
// JSON of users' rows, of which no number is rounded: one that 64 bits cannot hold is kept as it is written.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

struct ExactJson {
  nlohmann::ordered_json value;  ///< discarded where the text is no JSON
  std::string wrong;             ///< then what is wrong with it, as in "is not JSON from its byte 3 on"
};

/// Parses one document; the keys keep their order. A number is a long one unless an integer of 64 bits, or the float that is printed as
/// the same decimal, has its value.
ExactJson parse_exact(std::string_view text);

constexpr uint64_t kLongNumber = 0x4E;  ///< the subtype of its bytes
/// A number as it is written, of any length. nlohmann's type has no place for one, so that it is kept as bytes: dump() does not know it.
inline nlohmann::ordered_json long_number(std::string_view written) {
  return nlohmann::ordered_json::binary(std::vector<uint8_t>(written.begin(), written.end()), kLongNumber);
}
inline bool is_long_number(const nlohmann::ordered_json& value) {
  return value.is_binary() && value.get_binary().has_subtype() && value.get_binary().subtype() == kLongNumber;
}
std::string written_number(const nlohmann::ordered_json& value);  ///< of a long number

/// One line of JSON, long numbers as they were written. Bytes that are not UTF-8 become U+FFFD.
std::string exact_text(const nlohmann::ordered_json& value);

}  // namespace tandem
