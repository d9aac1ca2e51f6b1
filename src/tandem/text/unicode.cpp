// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tandem/base/check.h"

namespace tandem::text {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

struct LeadByte {
  size_t length;        // of the whole sequence; 0 if no sequence starts so
  uint8_t low, high;    // range of the second byte (Unicode, table 3-7)
};

LeadByte lead_byte(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

constexpr char32_t kFirstUnsafe = 0x300;  // code points below are their own NFC and never combine; their lead bytes are below 0xCC

void append_decomposed(char32_t code_point, std::vector<utf8proc_int32_t>& out) {
  utf8proc_int32_t buffer[32];
  int boundary = 0;
  const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), buffer, 32,
                                             static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), &boundary);
  TANDEM_CHECK(count >= 0 && count <= 32, "decomposition of U+", std::hex, static_cast<uint32_t>(code_point));
  out.insert(out.end(), buffer, buffer + count);
}

// utf8proc orders marks by exchanging neighbours, which is quadratic on a long run of them.
void order_marks(std::vector<utf8proc_int32_t>& points) {
  auto combining = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  for (auto at = points.begin(); at != points.end();) {
    if (combining(*at) == 0) {
      ++at;
      continue;
    }
    auto end = std::find_if(at, points.end(), [&](auto c) { return combining(c) == 0; });
    std::stable_sort(at, end, [&](auto a, auto b) { return combining(a) < combining(b); });
    at = end;
  }
}

// One bit a code point: it combines with what is before it, or normalisation changes it.
const std::vector<bool>& unsafe_points() {
  static const std::vector<bool> unsafe = [] {
    std::vector<bool> bits(0x110000);
    std::vector<utf8proc_int32_t> parts;
    for (char32_t c = kFirstUnsafe; c < 0x110000; ++c) {
      const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
      if (property->combining_class != 0) bits[c] = true;
      if (property->decomp_seqindex == UINT16_MAX || property->decomp_type != 0) continue;
      parts.clear();
      append_decomposed(c, parts);
      for (size_t i = 1; i < parts.size(); ++i) bits[static_cast<size_t>(parts[i])] = true;
      utf8proc_int32_t whole[32];
      std::copy(parts.begin(), parts.end(), whole);
      const auto count = utf8proc_normalize_utf32(whole, static_cast<utf8proc_ssize_t>(parts.size()),
                                                  static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
      if (count != 1 || whole[0] != static_cast<utf8proc_int32_t>(c)) bits[c] = true;
    }
    for (char32_t c = 0x1161; c <= 0x1175; ++c) bits[c] = true;  // vowels and finals of Hangul
    for (char32_t c = 0x11A8; c <= 0x11C2; ++c) bits[c] = true;
    return bits;
  }();
  return unsafe;
}

// Where the next character lies that is not safe, and where the safe one before it begins. Without one, the end of the text.
struct UnsafePlace {
  size_t at, before;
};
UnsafePlace next_unsafe(std::string_view text, size_t at) {
  size_t before = at;
  while (at < text.size()) {
    const auto byte = static_cast<uint8_t>(text[at]);
    if (byte < 0x80) {
      before = at++;
      continue;
    }
    const Utf8Step step = utf8_step(text.substr(at, 4));
    if (!step.valid || (step.code_point >= kFirstUnsafe && unsafe_points()[step.code_point])) return {at, before};
    before = at;
    at += step.length;
  }
  return {at, at};
}

size_t next_safe(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Utf8Step step = utf8_step(text.substr(at, 4));
    if (step.valid && (step.code_point < kFirstUnsafe || !unsafe_points()[step.code_point])) break;
    at += step.length;
  }
  return at;
}

void append_nfc(std::string_view text, std::string& out) {
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text.substr(at, 4));
    append_decomposed(step.code_point, points);
    at += step.length;
  }
  order_marks(points);
  const auto count = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                                              static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  TANDEM_CHECK(count >= 0, "utf8proc: ", utf8proc_errmsg(count));
  for (utf8proc_ssize_t i = 0; i < count; ++i) append_utf8(out, static_cast<char32_t>(points[static_cast<size_t>(i)]));
}

}  // namespace

Utf8Step utf8_step(std::string_view bytes) {
  if (bytes.empty()) return {0, false, false, kReplacement};
  const auto first = static_cast<uint8_t>(bytes[0]);
  const LeadByte lead = lead_byte(first);
  if (lead.length == 1) return {1, true, false, first};
  if (lead.length == 0) return {1, false, false, kReplacement};
  char32_t point = first & (0xFF >> (lead.length + 1));
  for (size_t i = 1; i < lead.length; ++i) {
    if (i >= bytes.size()) return {i, false, true, kReplacement};
    const auto byte = static_cast<uint8_t>(bytes[i]);
    const uint8_t low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return {i, false, false, kReplacement};
    point = (point << 6) | (byte & 0x3F);
  }
  return {lead.length, true, false, point};
}

int64_t num_characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

bool is_utf8(std::string_view bytes) {
  for (size_t at = 0; at < bytes.size();) {
    uint64_t eight = 0;
    if (at + 8 <= bytes.size()) std::memcpy(&eight, bytes.data() + at, 8);
    if (at + 8 <= bytes.size() && (eight & 0x8080808080808080ull) == 0) {
      at += 8;
      continue;
    }
    const Utf8Step step = utf8_step(bytes.substr(at, 4));
    if (!step.valid) return false;
    at += step.length;
  }
  return true;
}

void append_utf8(std::string& out, char32_t c) {
  utf8proc_uint8_t bytes[4];
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(count));
}

std::string repair_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Step step = utf8_step(bytes.substr(at, 4));
    if (step.valid)
      out.append(bytes.substr(at, step.length));
    else
      append_utf8(out, kReplacement);
    at += step.length;
  }
  return out;
}

bool is_nfc(std::string_view text) { return next_unsafe(text, 0).at == text.size(); }

// A safe character neither changes nor joins what is before it. So only what stands around the others is normalised.
std::string nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const UnsafePlace place = next_unsafe(text, at);
    out.append(text.substr(at, place.before - at));
    at = next_safe(text, place.at);
    append_nfc(text.substr(place.before, at - place.before), out);
  }
  return out;
}

bool is_word_char(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LL: case UTF8PROC_CATEGORY_LT: case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: case UTF8PROC_CATEGORY_MN: case UTF8PROC_CATEGORY_MC: case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND: case UTF8PROC_CATEGORY_NL: case UTF8PROC_CATEGORY_PC:
      return true;
    default:  // letters in circles and squares, joiners
      return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
             (c >= 0x1F170 && c <= 0x1F189) || c == 0x200C || c == 0x200D;
  }
}

bool is_space(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

}  // namespace tandem::text
