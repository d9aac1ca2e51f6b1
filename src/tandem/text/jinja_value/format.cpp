// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/jinja_value/format.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "tandem/text/jinja_value/characters.h"

namespace tandem::text::jinja {
namespace {

std::string hex(uint32_t number, int digits) {
  char buffer[16];
  std::snprintf(buffer, sizeof buffer, "%0*x", digits, number);
  return buffer;
}

// The escape of a character with a short form, else 0.
char short_escape(char32_t c) {
  return c == '\n' ? 'n' : c == '\r' ? 'r' : c == '\t' ? 't' : c == '\\' ? '\\' : '\0';
}

std::string quoted(const std::string& text) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (const std::string_view character : characters_of(text)) {
    const char32_t c = code_point(character);
    if (const char escape = short_escape(c))
      (out += '\\') += escape;
    else if (c == static_cast<char32_t>(quote))
      (out += '\\') += quote;
    else if (is_printable(c))
      out += character;
    else
      out += c < 0x100 ? "\\x" + hex(c, 2) : c < 0x10000 ? "\\u" + hex(c, 4) : "\\U" + hex(c, 8);
  }
  return out += quote;
}

class Repr {
 public:
  explicit Repr(Workspace& workspace) : workspace_(workspace), out_(workspace) {}

  std::string of(const Value& value) {
    write(value);
    return out_.take();
  }

 private:
  void write(const Value& value) {
    workspace_.spend(16);
    if (value.is_text()) {
      workspace_.spend(static_cast<int64_t>(value.text().size()));
      out_ += quoted(value.text());
    } else if (value.is_list()) {
      write_list(value.list());
    } else if (value.is_dict()) {
      out_ += '{';
      for (const auto& entry : value.dict().entries()) {
        if (&entry != &value.dict().entries().front()) out_ += ", ";
        write(entry.first);
        out_ += ": ";
        write(entry.second);
      }
      out_ += '}';
    } else {
      out_ += value.is_undefined() ? "Undefined" : to_text(workspace_, value);
    }
  }

  void write_list(const List& list) {
    out_ += list.is_tuple ? '(' : '[';
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_ += ", ";
      write(list.items[i]);
    }
    if (list.is_tuple && list.items.size() == 1) out_ += ',';
    out_ += list.is_tuple ? ')' : ']';
  }

  Workspace& workspace_;
  TextBuilder out_;
};

class JsonWriter {
 public:
  JsonWriter(Workspace& workspace, const JsonStyle& style) : workspace_(workspace), style_(style), out_(workspace) {}

  std::string of(const Value& value) {
    write(value, 0);
    return out_.take();
  }

 private:
  void write(const Value& value, int level) {
    workspace_.spend(16);
    if (value.is_none())
      out_ += "null";
    else if (value.is_bool())
      out_ += value.boolean() ? "true" : "false";
    else if (value.is_int())
      out_ += std::to_string(value.integer());
    else if (value.is_float())
      out_ += number(value.floating());
    else if (value.is_text())
      string(value.text());
    else if (value.is_list())
      list(value.list().items, level);
    else if (value.is_dict())
      dict(value.dict(), level);
    else if (const LongInteger* number = long_integer(value))
      out_ += number->digits;
    else
      throw RenderError(std::string("a value of type '") + type_name(value.defined()) + "' has no form in JSON");
  }

  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return float_text(value);
  }

  void string(const std::string& text) {
    out_ += '"';
    for (size_t i = 0; i < text.size();) {
      size_t plain = i;
      while (plain < text.size() && is_plain(static_cast<uint8_t>(text[plain]))) ++plain;
      out_ += std::string_view(text).substr(i, plain - i);
      if ((i = plain) == text.size()) break;
      const auto byte = static_cast<uint8_t>(text[i]);
      if (byte < 0x80) {
        ascii(byte);
        ++i;
        continue;
      }
      size_t end = i + 1;
      while (end < text.size() && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) ++end;
      if (style_.ascii)
        escape(code_point(std::string_view(text).substr(i, end - i)));
      else
        out_ += std::string_view(text).substr(i, end - i);
      i = end;
    }
    out_ += '"';
  }

  static bool is_plain(uint8_t c) { return c >= 0x20 && c < 0x7F && c != '"' && c != '\\'; }

  void ascii(uint8_t c) {
    if (const char escape = short_escape(c))
      (out_ += '\\') += escape;
    else if (c == '"')
      out_ += "\\\"";
    else if (c == '\b')
      out_ += "\\b";
    else if (c == '\f')
      out_ += "\\f";
    else if (c < 0x20 || (c == 0x7F && style_.ascii))
      out_ += "\\u" + hex(c, 4);
    else
      out_ += static_cast<char>(c);
  }

  void escape(char32_t c) {
    if (c >= 0x10000) {
      out_ += "\\u" + hex(0xD800 + ((c - 0x10000) >> 10), 4);
      c = 0xDC00 + ((c - 0x10000) & 0x3FF);
    }
    out_ += "\\u" + hex(c, 4);
  }

  void list(const std::vector<Value>& items, int level) {
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      separate(i, level + 1);
      write(items[i], level + 1);
    }
    close(items.empty(), level, ']');
  }

  void dict(const Dict& dict, int level) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries()) entries.push_back(&entry);
    if (style_.sort_keys)
      std::stable_sort(entries.begin(), entries.end(), [&](auto* a, auto* b) { return key(a->first) < key(b->first); });
    out_ += '{';
    for (size_t i = 0; i < entries.size(); ++i) {
      separate(i, level + 1);
      string(key(entries[i]->first));
      out_ += style_.key_separator;
      write(entries[i]->second, level + 1);
    }
    close(entries.empty(), level, '}');
  }

  static std::string key(const Value& key) {
    if (key.is_text()) return key.text();
    if (key.is_none()) return "null";
    if (key.is_bool()) return key.boolean() ? "true" : "false";
    return key.is_int() ? std::to_string(key.integer()) : number(key.floating());
  }

  void separate(size_t index, int level) {
    if (index > 0) out_ += style_.item_separator;
    line(level);
  }
  void close(bool empty, int level, char bracket) {
    if (!empty) line(level);
    out_ += bracket;
  }
  void line(int level) {
    if (style_.indent < 0) return;
    out_ += '\n';
    out_.append(static_cast<size_t>(style_.indent) * static_cast<size_t>(level), ' ');
  }

  Workspace& workspace_;
  const JsonStyle& style_;
  TextBuilder out_;
};

// One conversion of a format: %[flags][width][.precision]letter.
struct Conversion {
  std::string flags;
  int width = 0, precision = -1;
  char letter = 0;
};

int small_number(const std::string& format, size_t& at) {
  int number = 0;
  for (; at < format.size() && format[at] >= '0' && format[at] <= '9'; ++at)
    if ((number = number * 10 + (format[at] - '0')) > 1000) throw RenderError("a format is wider than 1000 characters");
  return number;
}

Conversion read_conversion(const std::string& format, size_t& at) {
  Conversion one;
  while (at < format.size() && std::string_view("-+ 0#").find(format[at]) != std::string_view::npos) one.flags += format[at++];
  one.width = small_number(format, at);
  if (at < format.size() && format[at] == '.') one.precision = small_number(format, ++at);
  if (at < format.size()) one.letter = format[at++];
  if (one.letter == 'i') one.letter = 'd';
  return one;
}

std::string print_number(const Conversion& one, const Value& value) {
  const std::string name = std::string("%") + one.letter;
  if (!value.is_number()) throw RenderError(name + " wants a number, not a value of type '" + type_name(value) + "'");
  char buffer[2500];
  const std::string start = "%" + one.flags + "*.*";
  if (one.letter == 'f' || one.letter == 'e' || one.letter == 'g') {
    std::snprintf(buffer, sizeof buffer, (start + one.letter).c_str(), one.width, one.precision, value.floating());
  } else {
    if (value.is_float() && (one.letter != 'd' || std::abs(value.floating()) > 9e18)) throw RenderError(name + " wants an integer");
    const long long integer = value.is_float() ? static_cast<long long>(value.floating()) : value.integer();
    std::snprintf(buffer, sizeof buffer, (start + "ll" + one.letter).c_str(), one.width, one.precision, integer);
  }
  return buffer;
}

std::string convert(Workspace& workspace, const Conversion& one, const Value& value) {
  if (one.letter != 's' && one.letter != 'r') {
    if (std::string_view("dxXofeg").find(one.letter) != std::string_view::npos) return print_number(one, value);
    throw RenderError(std::string("the format %") + one.letter + " is not supported");
  }
  std::string text = one.letter == 's' ? to_text(workspace, value) : Repr(workspace).of(value);
  if (one.precision >= 0) text.resize(characters_between(text, 0, one.precision).size());
  const std::string blanks(static_cast<size_t>(std::max<int64_t>(0, one.width - num_characters(text))), ' ');
  return one.flags.find('-') == std::string::npos ? blanks + text : text + blanks;
}

}  // namespace

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string digits(buffer, end);
  const size_t e = digits.find('e');
  const int exponent = std::stoi(digits.substr(e + 1));
  std::string mantissa = digits.substr(0, e);
  if (exponent < -4 || exponent >= 16) {
    std::snprintf(buffer, sizeof buffer, "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
    return mantissa + buffer;
  }
  const bool negative = mantissa[0] == '-';
  std::erase(mantissa, '-');
  std::erase(mantissa, '.');
  if (exponent < 0) {
    mantissa = "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + mantissa;
  } else {
    const auto whole = static_cast<size_t>(exponent) + 1;
    if (mantissa.size() < whole) mantissa.append(whole - mantissa.size(), '0');
    mantissa.insert(whole, mantissa.size() == whole ? ".0" : ".");
  }
  return negative ? "-" + mantissa : mantissa;
}

std::string to_text(Workspace& workspace, const Value& value) {
  workspace.spend(16);
  if (value.is_text()) return workspace.spend(static_cast<int64_t>(value.text().size())), value.text();
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (value.is_bool()) return value.boolean() ? "True" : "False";
  if (value.is_int()) return std::to_string(value.integer());
  if (value.is_float()) return float_text(value.floating());
  if (const LongInteger* number = long_integer(value)) return workspace.spend(static_cast<int64_t>(number->digits.size())), number->digits;
  if (value.is_object()) return std::string("<") + value.object().type() + ">";
  return Repr(workspace).of(value);
}

std::string to_json(Workspace& workspace, const Value& value, const JsonStyle& style) { return JsonWriter(workspace, style).of(value); }

std::string format_percent(Workspace& workspace, const std::string& format, const std::vector<Value>& values) {
  TextBuilder out(workspace);
  size_t used = 0;
  for (size_t at = 0; at < format.size();) {
    if (format[at] != '%') {
      out += format[at++];
      continue;
    }
    const Conversion one = read_conversion(format, ++at);
    if (one.letter == '%') {
      out += '%';
      continue;
    }
    if (used == values.size()) throw RenderError("the format has more places than there are values");
    out += convert(workspace, one, values[used++]);
  }
  if (used < values.size()) throw RenderError("the format has fewer places than there are values");
  return out.take();
}

}  // namespace tandem::text::jinja
