// SPDX-License-Identifier: Apache-2.0
// Filters of texts and numbers. Those of lists stand in filter_list.cpp.
#include "tandem/text/jinja_value/filter.h"

#include <cmath>
#include <cstdlib>

#include "tandem/base/options.h"
#include "tandem/base/strings.h"
#include "tandem/text/jinja_value/characters.h"
#include "tandem/text/jinja_value/format.h"
#include "tandem/text/jinja_value/method.h"
#include "tandem/text/jinja_value/operation.h"
#include "tandem/text/unicode.h"

namespace tandem::text::jinja {
namespace {

Value to_json_filter(Workspace& workspace, const Value& value, ArgumentReader& in) {
  JsonStyle style;
  style.ascii = truth(in.next("ensure_ascii", false));
  const Value indent = in.next("indent", None{}), separators = in.next("separators", None{});
  style.sort_keys = truth(in.next("sort_keys", false));
  if (!indent.is_none()) {
    if (!indent.is_number() || indent.is_float() || indent.integer() < 0 || indent.integer() > 64)
      throw RenderError("tojson wants an indent of 0 to 64");
    style.indent = static_cast<int>(indent.integer());
    style.item_separator = ",";
  }
  if (!separators.is_none()) {
    const auto texts = items_of(workspace, separators);
    if (texts->items.size() != 2 || !texts->items[0].is_text() || !texts->items[1].is_text())
      throw RenderError("tojson wants two texts as separators");
    style.item_separator = texts->items[0].text();
    style.key_separator = texts->items[1].text();
  }
  return workspace.text(to_json(workspace, value, style));
}

Value trim_filter(Workspace& workspace, const Value& value, ArgumentReader& in) {
  const Value characters = in.next("chars", None{});
  const std::string text = to_text(workspace, value);
  if (!characters.is_text()) return workspace.text(std::string(strip(text)));
  workspace.spend(static_cast<int64_t>(text.size() / 8 * characters.text().size()));
  return workspace.text(std::string(strip(text, characters.text(), Side::kBoth)));
}

Value default_filter(Workspace&, const Value& value, ArgumentReader& in) {
  const Value fallback = in.next("default_value", ""), any_false = in.next("boolean", false);
  return value.is_undefined() || (truth(any_false) && !truth(value)) ? fallback : value;
}

Value replace_filter(Workspace& workspace, const Value& value, ArgumentReader& in) {
  const Value what = in.next("old"), with = in.next("new"), count = in.next("count", None{});
  const int64_t limit = count.is_int() ? count.integer() : -1;
  return workspace.text(replace(workspace, to_text(workspace, value), to_text(workspace, what), to_text(workspace, with), limit));
}

// A whole number as int() reads it: signs, blanks around, underscores between digits.
bool read_integer(std::string_view text, int64_t base, int64_t& out) {
  std::string digits(strip(text));
  std::erase(digits, '_');
  if (digits.empty() || base < 2 || base > 36) return false;
  char* end = nullptr;
  errno = 0;
  out = std::strtoll(digits.c_str(), &end, static_cast<int>(base));
  if (errno == ERANGE) throw RenderError("the number `" + digits.substr(0, 30) + "` does not fit into 64 bits");
  return *end == '\0';
}
bool read_float(std::string_view text, double& out) {
  std::string digits(strip(text));
  std::erase(digits, '_');
  if (digits.empty() || digits.find_first_of("xXpP(") != std::string::npos) return false;
  char* end = nullptr;
  out = std::strtod(digits.c_str(), &end);
  return *end == '\0';
}

Value int_filter(Workspace&, const Value& value, ArgumentReader& in) {
  const Value fallback = in.next("default", int64_t{0}), base = in.next("base", int64_t{10});
  if (value.is_number() && !value.is_float()) return value.integer();
  if (long_integer(value)) return value;
  double number = value.is_float() ? value.floating() : 0;
  int64_t whole = 0;
  if (value.is_text() && read_integer(value.text(), base.is_int() ? base.integer() : 10, whole)) return whole;
  if (!value.is_float() && (!value.is_text() || !read_float(value.text(), number))) return fallback;
  return std::abs(number) < 9.2e18 ? Value(static_cast<int64_t>(number)) : fallback;
}

Value float_filter(Workspace&, const Value& value, ArgumentReader& in) {
  const Value fallback = in.next("default", 0.0);
  if (value.is_number()) return value.floating();
  if (const LongInteger* big = long_integer(value)) return std::strtod(big->digits.c_str(), nullptr);
  double number = 0;
  return value.is_text() && read_float(value.text(), number) ? Value(number) : fallback;
}

// As printed with that many decimals, which rounds the exact binary value.
double rounded(double value, int precision) {
  char buffer[400];
  if (precision >= 0) {
    std::snprintf(buffer, sizeof buffer, "%.*f", precision, value);
    return std::strtod(buffer, nullptr);
  }
  const double scale = std::pow(10.0, -precision);
  return std::nearbyint(value / scale) * scale;
}

Value round_filter(Workspace&, const Value& value, ArgumentReader& in) {
  const Value precision = in.next("precision", int64_t{0}), method = in.next("method", "common");
  if (!value.is_number())
    throw RenderError(std::string("round wants a number, not a value of type '") + type_name(value.defined()) + "'");
  if (!precision.is_int() || std::abs(precision.integer()) > 20) throw RenderError("round wants a precision of -20 to 20");
  const auto digits = static_cast<int>(precision.integer());
  const std::string how = method.is_text() ? method.text() : "";
  if (how == "common") {
    if (value.is_float()) return rounded(value.floating(), digits);
    return digits >= 0 ? Value(value.integer()) : Value(static_cast<int64_t>(rounded(value.floating(), digits)));
  }
  if (how != "ceil" && how != "floor") throw RenderError("round knows the methods common, ceil and floor");
  const double scaled = value.floating() * std::pow(10.0, digits);
  return (how == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / std::pow(10.0, digits);
}

Value abs_filter(Workspace&, const Value& value, ArgumentReader&) {
  if (!value.is_number())
    throw RenderError(std::string("abs wants a number, not a value of type '") + type_name(value.defined()) + "'");
  if (value.is_float()) return std::abs(value.floating());
  return value.integer() < 0 ? negative(value) : Value(value.integer());
}

template <std::string (*changed)(std::string_view)>
Value changed_text(Workspace& workspace, const Value& value, ArgumentReader&) {
  const std::string text = to_text(workspace, value);
  workspace.spend(8 * static_cast<int64_t>(text.size()));
  return workspace.text(changed(text));
}

// Words begin behind blanks, dashes and opening brackets, unlike those of str.title().
std::string title_words(std::string_view text) {
  std::string out;
  size_t begin = 0;
  const auto starts = [](std::string_view c) {
    return is_space(code_point(c)) || (c.size() == 1 && std::string_view("-({[<").find(c[0]) != std::string_view::npos);
  };
  size_t at = 0;
  for (const std::string_view c : characters_of(text)) {
    if (starts(c)) {
      (out += capitalize(text.substr(begin, at - begin))) += c;
      begin = at + c.size();
    }
    at += c.size();
  }
  return out += capitalize(text.substr(begin));
}

Value string_filter(Workspace& workspace, const Value& value, ArgumentReader&) {
  return workspace.text(to_text(workspace, value));
}

Value escape_filter(Workspace& workspace, const Value& value, ArgumentReader&) {
  std::string out = to_text(workspace, value);
  for (const auto& [sign, code] : {std::pair{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}})
    out = tandem::replaced(out, sign, code);
  return workspace.text(std::move(out));
}

Value indent_filter(Workspace& workspace, const Value& value, ArgumentReader& in) {
  const Value width = in.next("width", int64_t{4});
  const bool first = truth(in.next("first", false)), blank = truth(in.next("blank", false));
  if (!width.is_text() && (!width.is_int() || width.integer() < 0 || width.integer() > 1000))
    throw RenderError("indent wants a text, or a number of blanks up to 1000");
  const std::string margin = width.is_text() ? width.text() : std::string(static_cast<size_t>(width.integer()), ' ');
  const std::string text = to_text(workspace, value) + "\n";  // so that a last empty line counts
  Workspace::afford(most_lines(text), 16);
  TextBuilder out(workspace);
  bool is_first = true;
  for (const std::string_view line : lines_of(text)) {
    workspace.spend(16);
    if (!is_first) out += '\n';
    if (is_first ? first : blank || !line.empty()) out += margin;
    out += line;
    is_first = false;
  }
  return workspace.text(out.take());
}

Value format_filter(Workspace& workspace, const Value& value, ArgumentReader& in) {
  const Arguments& arguments = in.take_all();
  if (!arguments.named.empty()) throw RenderError("format with named values is not supported");
  return workspace.text(format_percent(workspace, to_text(workspace, value), arguments.positional));
}

Value url_encode_filter(Workspace& workspace, const Value& value, ArgumentReader&) {
  std::string out;
  for (const char c : to_text(workspace, value)) {
    char code[4];
    std::snprintf(code, sizeof code, "%%%02X", static_cast<unsigned char>(c));
    const bool plain = (static_cast<unsigned char>(c) < 128 && std::isalnum(static_cast<unsigned char>(c))) ||
                       std::string_view("_.-~/").find(c) != std::string_view::npos;
    out += plain ? std::string(1, c) : code;
  }
  return workspace.text(std::move(out));
}

const std::map<std::string, Filter>& text_filters() {
  static const std::map<std::string, Filter> all = {
      {"tojson", to_json_filter}, {"trim", trim_filter},     {"default", default_filter}, {"d", default_filter},
      {"replace", replace_filter}, {"int", int_filter},      {"float", float_filter},     {"round", round_filter},
      {"abs", abs_filter},        {"string", string_filter}, {"escape", escape_filter},   {"e", escape_filter},
      {"indent", indent_filter},  {"format", format_filter}, {"urlencode", url_encode_filter},
      {"safe", string_filter},  // nothing is escaped unless a template asks for it
      {"upper", changed_text<upper>}, {"lower", changed_text<lower>}, {"capitalize", changed_text<capitalize>},
      {"title", changed_text<title_words>}};
  return all;
}

}  // namespace

Value apply_filter(Workspace& workspace, const std::string& name, const Value& value, const Arguments& arguments) {
  std::vector<std::string> known;
  for (const auto* filters : {&text_filters(), &list_filters()}) {
    if (const auto found = filters->find(name); found != filters->end()) {
      ArgumentReader in(name, arguments);
      Value out = found->second(workspace, value, in);
      in.finish();
      return out;
    }
    for (const auto& [other, filter] : *filters) known.push_back(other);
  }
  throw RenderError("the filter `" + name + "` is not supported; the nearest is `" + nearest_name(name, known) + "`");
}

}  // namespace tandem::text::jinja
