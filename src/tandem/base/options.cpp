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

std::vector<std::string> split_list(std::string text) {
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') text = text.substr(1, text.size() - 2);
  std::vector<std::string> items;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) {
    const auto first = item.find_first_not_of(" \t\"'");
    const auto last = item.find_last_not_of(" \t\"'");
    if (first != std::string::npos) items.push_back(item.substr(first, last - first + 1));
  }
  return items;
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
OptionCheck power_of_two() {
  return [](const OptionValue& v) {
    const auto x = static_cast<int64_t>(as_number(v));
    return x > 0 && (x & (x - 1)) == 0 ? "" : "a power of two";
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

void OptionList::option(const OptionRef& option) { entries.push_back({prefix_ + std::string(option.name), option}); }
void OptionList::begin_section(std::string_view name, std::string_view help) {
  prefix_ += std::string(name);
  sections.push_back({prefix_, std::string(help)});
  prefix_ += '.';
}
void OptionList::end_section() {
  prefix_.pop_back();
  const auto dot = prefix_.rfind('.');
  prefix_.resize(dot == std::string::npos ? 0 : dot + 1);
}

void set_option(const OptionEntry& entry, const std::string& text, const std::string& where) {
  const bool parsed = std::visit(
      [&](auto* target) -> bool {
        using T = std::remove_pointer_t<decltype(target)>;
        if constexpr (std::is_same_v<T, std::string>) return *target = text, true;
        else if constexpr (std::is_same_v<T, std::vector<std::string>>) return *target = split_list(text), true;
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
          std::string quoted = "\"";
          for (char c : *v) quoted += c == '\n' ? std::string("\\n") : (c == '"' || c == '\\') ? std::string("\\") + c : std::string(1, c);
          return quoted + "\"";
        } else {
          std::string list = "[";
          for (const auto& item : *v) list += (list.size() > 1 ? ", " : "") + ("\"" + item + "\"");
          return list + "]";
        }
      },
      value);
}

const char* option_type(const OptionValue& value) {
  constexpr const char* kNames[] = {"true or false", "an integer", "a number", "a text", "a list of texts"};
  return kNames[value.index()];
}

std::string nearest_name(std::string_view wanted, const std::vector<std::string>& names) {
  std::string best;
  size_t best_distance = SIZE_MAX;
  for (const auto& name : names) {
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
    if (row.back() < best_distance) best_distance = row.back(), best = name;
  }
  return best;
}

}  // namespace tandem
