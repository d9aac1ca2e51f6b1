// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/input/exact_json.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "tandem/base/check.h"
#include "tandem/base/json_depth.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

// A decimal without leading or trailing zeros: 0.digits x 10^exponent. Zero has no digits.
struct Decimal {
  bool negative = false;
  std::string digits;
  int64_t exponent = 0;
  bool operator==(const Decimal& other) const {
    return digits == other.digits && (digits.empty() || (negative == other.negative && exponent == other.exponent));
  }
};

Decimal decimal_of(std::string_view written) {
  Decimal out;
  out.negative = written.starts_with('-');
  bool behind_point = false;
  size_t at = out.negative ? 1 : 0;
  for (; at < written.size() && written[at] != 'e' && written[at] != 'E'; ++at) {
    if (written[at] == '.') {
      behind_point = true;
      continue;
    }
    if (!behind_point && !(out.digits.empty() && written[at] == '0')) ++out.exponent;
    if (behind_point && out.digits.empty() && written[at] == '0') --out.exponent;
    if (!out.digits.empty() || written[at] != '0') out.digits += written[at];
  }
  while (out.digits.ends_with('0')) out.digits.pop_back();
  if (at < written.size()) {
    constexpr int64_t kFar = int64_t{1} << 40;  // no float is near it
    const bool down = written[at + 1] == '-';
    int64_t power = 0;
    for (const char c : written.substr(at + 1))
      if (c >= '0' && c <= '9') power = std::min(kFar, power * 10 + (c - '0'));
    out.exponent += down ? -power : power;
  }
  return out;
}

class Builder final : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(std::string_view text) : text_(text) {}
  ExactJson take() { return {wrong_.empty() ? std::move(root_) : Json(Json::value_t::discarded), std::move(wrong_)}; }

  bool null() override { return add(nullptr); }
  bool boolean(bool v) override { return add(v); }
  bool number_integer(number_integer_t v) override { return add(v); }
  bool number_unsigned(number_unsigned_t v) override { return add(v); }
  bool number_float(number_float_t v, const string_t& written) override {
    const bool is_integer = written.find_first_of(".eE") == std::string::npos;
    return add(!is_integer && decimal_of(Json(v).dump()) == decimal_of(written) ? Json(v) : long_number(written));
  }
  bool string(string_t& v) override { return add(std::move(v)); }
  bool binary(binary_t&) override { TANDEM_CHECK(false, "text has no bytes"); }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool key(string_t& name) override { return key_ = std::move(name), true; }
  bool end_object() override { return open_.pop_back(), true; }
  bool end_array() override { return open_.pop_back(), true; }
  bool parse_error(std::size_t byte, const std::string& last, const nlohmann::detail::exception& e) override {
    constexpr int kOutOfRange = 406;
    if (e.id == kOutOfRange) wrong_ = "holds the number " + last.substr(0, 40) + ", which is larger than any float";
    else if (std::string_view(e.what()).find("ill-formed UTF-8") != std::string_view::npos)
      wrong_ = not_utf8(std::min(byte, text_.size()));
    else wrong_ = "is not JSON from its byte " + std::to_string(byte) + " on";
    return false;
  }

 private:
  // The parser names the byte that it did not take. What is wrong is a character that began before, where that is not whole yet.
  std::string not_utf8(size_t byte) const {
    const auto at = [&](size_t place) { return static_cast<uint8_t>(text_[place - 1]); };  // places count from 1
    size_t first = byte;
    for (size_t back = 1; back < std::min<size_t>(4, byte) && at(byte - back) >= 0x80; ++back) {
      const uint8_t lead = at(byte - back);
      if (lead < 0xC0) continue;
      if (back < (lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2)) first = byte - back;
      break;
    }
    char text[64];
    std::snprintf(text, sizeof text, "is not UTF-8 at its byte %zu, 0x%02X", first, at(first));
    return text;
  }

  Json* place(Json value) {
    if (open_.empty()) return &(root_ = std::move(value));
    Json& parent = *open_.back();
    if (parent.is_array()) return &parent.emplace_back(std::move(value));
    return &(parent[std::exchange(key_, "")] = std::move(value));
  }
  bool add(Json value) { return place(std::move(value)), true; }
  bool open(Json value) { return open_.push_back(place(std::move(value))), true; }

  std::string_view text_;
  Json root_;
  std::vector<Json*> open_;
  std::string key_, wrong_;
};

}  // namespace

ExactJson parse_exact(std::string_view text) {
  if (nests_too_deep(text))
    return {Json(Json::value_t::discarded), "nests deeper than " + std::to_string(kMaxJsonDepth) + " levels"};
  Builder builder(text);
  Json::sax_parse(text, &builder);
  return builder.take();
}

std::string written_number(const Json& value) {
  TANDEM_CHECK(is_long_number(value), "no long number");
  return {value.get_binary().begin(), value.get_binary().end()};
}

std::string exact_text(const Json& value) {
  if (is_long_number(value)) return written_number(value);
  if (!value.is_structured()) return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string out(1, value.is_array() ? '[' : '{');
  for (const auto& [name, item] : value.items()) {
    if (out.size() > 1) out += ',';
    if (value.is_object()) out += exact_text(Json(name)) + ':';
    out += exact_text(item);
  }
  return out += value.is_array() ? ']' : '}';
}

}  // namespace tandem
