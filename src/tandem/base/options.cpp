// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <sstream>

#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem {
namespace {

double as_number(const OptionValue& value) {
  if (auto p = std::get_if<int64_t*>(&value)) return static_cast<double>(**p);
  if (auto p = std::get_if<double*>(&value)) return **p;
  TANDEM_CHECK(false, "a numeric check on an option that is not a number");
  return 0;
}

std::string plain(double x) {
  std::ostringstream out;
  out << x;
  return out.str();
}

constexpr std::string_view kBlank = " \t\r\n";

// One item of a YAML flow sequence at a time: plain, 'single' or "double" quoted.
class FlowSequence {
 public:
  explicit FlowSequence(std::string_view text) : text_(text) {}

  /// False if the text is no list.
  bool read(std::vector<std::string>& items) {
    skip_blanks();
    while (at_ < text_.size()) {
      std::string item;
      const char first = text_[at_];
      if (!(first == '"' ? double_quoted(item) : first == '\'' ? single_quoted(item) : plain(item))) return false;
      items.push_back(std::move(item));
      skip_blanks();
      if (at_ == text_.size()) break;
      if (text_[at_++] != ',') return false;
      skip_blanks();
    }
    return true;
  }

 private:
  void skip_blanks() { at_ = std::min(text_.find_first_not_of(kBlank, at_), text_.size()); }

  bool plain(std::string& item) {
    const size_t end = std::min(text_.find(',', at_), text_.size());
    item = text_.substr(at_, end - at_);
    at_ = end;
    while (!item.empty() && kBlank.find(item.back()) != std::string_view::npos) item.pop_back();
    return !item.empty() && item.find_first_of("[]{}") == std::string::npos;
  }
  bool single_quoted(std::string& item) {
    for (++at_; at_ < text_.size(); ++at_) {
      const bool quote = text_[at_] == '\'';
      if (quote && text_.substr(at_ + 1, 1) != "'") return ++at_, true;
      item += text_[at_];
      if (quote) ++at_;  // '' is one quote
    }
    return false;
  }
  bool double_quoted(std::string& item) {
    for (++at_; at_ < text_.size(); ++at_) {
      if (text_[at_] == '"') return ++at_, true;
      if (text_[at_] != '\\') {
        item += text_[at_];
      } else if (++at_ == text_.size() || !escaped(item)) {
        return false;
      }
    }
    return false;
  }
  bool escaped(std::string& item) {
    constexpr std::string_view kNames = "ntr0\"\\/ ", kMeant("\n\t\r\0\"\\/ ", 8);
    if (const size_t name = kNames.find(text_[at_]); name != std::string_view::npos) return item += kMeant[name], true;
    int code = 0;
    const std::string_view digits = text_.substr(std::min(at_ + 1, text_.size()), 2);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (text_[at_] != 'x' || digits.size() != 2 || error != std::errc() || end != digits.data() + 2 || code > 0x7f) return false;
    at_ += 2;
    item += static_cast<char>(code);
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

// The brackets may be left out: a, b.
bool parse(const std::string& list, std::vector<std::string>& out) {
  const size_t first = list.find_first_not_of(kBlank), last = list.find_last_not_of(kBlank);
  std::string_view text = list;
  text = first == std::string::npos ? std::string_view() : text.substr(first, last - first + 1);
  if (text.starts_with('[')) {
    if (text.size() < 2 || !text.ends_with(']')) return false;
    text = text.substr(1, text.size() - 2);
  }
  std::vector<std::string> items;
  if (!FlowSequence(text).read(items)) return false;
  out = std::move(items);
  return true;
}

// A text as YAML and JSON write it in double quotes, on one line.
std::string yaml_quoted(const std::string& text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '\n') out += "\\n";
    else if (c == '\r') out += "\\r";
    else if (c == '\t') out += "\\t";
    else if (c == '"' || c == '\\') (out += '\\') += c;
    else if (code < 0x20 || code == 0x7f) ((out += "\\x") += kHex[code >> 4]) += kHex[code & 15];
    else out += c;
  }
  return out + "\"";
}

bool parse(const std::string& text, bool& out) {
  if (text == "true" || text == "yes" || text == "on" || text == "1") return out = true, true;
  if (text == "false" || text == "no" || text == "off" || text == "0") return out = false, true;
  return false;
}
template <class Number>
bool parse(const std::string& text, Number& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

OptionCheck at_least(double bound) {
  return [=](const OptionValue& v) { return as_number(v) >= bound ? "" : "at least " + plain(bound); };
}
OptionCheck above(double bound) {
  return [=](const OptionValue& v) { return as_number(v) > bound ? "" : "above " + plain(bound); };
}
OptionCheck between(double low, double high) {
  return [=](const OptionValue& v) {
    const double x = as_number(v);
    return x >= low && x <= high ? "" : "between " + plain(low) + " and " + plain(high);
  };
}
OptionCheck zero_or_power_of_two(int64_t least) {
  return [least](const OptionValue& v) -> std::string {
    const auto x = static_cast<int64_t>(as_number(v));
    const bool is_right = x == 0 || (x >= least && (x & (x - 1)) == 0);
    return is_right ? "" : join_text("0, or a power of two of at least ", least);
  };
}
OptionCheck one_of(std::vector<std::string> names) {
  return [names = std::move(names)](const OptionValue& v) -> std::string {
    const std::string& x = **std::get_if<std::string*>(&v);
    if (std::find(names.begin(), names.end(), x) != names.end()) return "";
    std::string text = "one of";
    for (const auto& name : names) text += (name.empty() ? " ''" : " " + name);
    return text;
  };
}

void set_option(const OptionEntry& entry, const std::string& text, const std::string& where) {
  const bool parsed = std::visit(
      [&](auto* target) -> bool {
        using T = std::remove_pointer_t<decltype(target)>;
        if constexpr (std::is_same_v<T, std::string>) return *target = text, true;
        else return parse(text, *target);
      },
      entry.ref.value);
  if (!parsed)
    throw UserError(where, entry.path + " is '" + text + "'", join_text("expected ", option_type(entry.ref.value)));
  check_option(entry, where);
}

void check_option(const OptionEntry& entry, const std::string& where) {
  if (!entry.ref.check) return;
  const std::string wanted = entry.ref.check(entry.ref.value);
  if (!wanted.empty()) throw UserError(where, entry.path + " is " + option_text(entry.ref.value), "expected " + wanted);
}

std::string option_text(const OptionValue& value) {
  return std::visit(
      [](auto* v) -> std::string {
        using T = std::remove_pointer_t<decltype(v)>;
        if constexpr (std::is_same_v<T, bool>) return *v ? "true" : "false";
        else if constexpr (std::is_same_v<T, int64_t>) return std::to_string(*v);
        else if constexpr (std::is_same_v<T, double>) {
          char buffer[40];
          const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, *v);
          return std::string(buffer, end);
        } else if constexpr (std::is_same_v<T, std::string>) {
          return yaml_quoted(*v);
        } else {
          std::string list = "[";
          for (const auto& item : *v) list += (list.size() > 1 ? ", " : "") + yaml_quoted(item);
          return list + "]";
        }
      },
      value);
}

const char* option_type(const OptionValue& value) {
  constexpr const char* kNames[] = {"true or false", "an integer", "a number", "a text", "a list of texts, such as [a, \"b, c\"]"};
  return kNames[value.index()];
}

namespace {

struct Nearest {
  std::string name;
  size_t distance = SIZE_MAX;  // edits
};

Nearest nearest(std::string_view wanted, const std::vector<std::string>& names) {
  constexpr size_t kCompared = 200;  // of each name: files of others may hold names of any length
  wanted = wanted.substr(0, kCompared);
  Nearest best;
  for (const auto& whole : names) {
    const std::string_view name = std::string_view(whole).substr(0, kCompared);
    std::vector<size_t> row(name.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= wanted.size(); ++i) {
      size_t diagonal = row[0]++;
      for (size_t j = 1; j <= name.size(); ++j) {
        const size_t substituted = diagonal + (wanted[i - 1] != name[j - 1]);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
      }
    }
    if (row.back() < best.distance) best = {whole, row.back()};
  }
  return best;
}

}  // namespace

std::string nearest_name(std::string_view wanted, const std::vector<std::string>& names) { return nearest(wanted, names).name; }

std::string near_name(std::string_view wanted, const std::vector<std::string>& names) {
  const Nearest found = nearest(wanted, names);
  return !found.name.empty() && 3 * found.distance <= std::max(wanted.size(), found.name.size()) ? found.name : "";
}

}  // namespace tandem
