// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/jinja_value/method.h"

#include <algorithm>
#include <ctime>

#include "tandem/text/jinja_value/characters.h"
#include "tandem/text/jinja_value/format.h"
#include "tandem/text/jinja_value/operation.h"
#include "tandem/text/unicode.h"

namespace tandem::text::jinja {
namespace {

class Function : public Object {
 public:
  Function(std::string name, std::function<Value(const Arguments&)> body) : name_(std::move(name)), body_(std::move(body)) {}
  const char* type() const override { return "function"; }
  bool callable() const override { return true; }
  Value call(const Arguments& arguments) override { return body_(arguments); }

 private:
  std::string name_;
  std::function<Value(const Arguments&)> body_;
};

const std::string& text_of(const Value& value, const char* who) {
  if (!value.is_text()) throw RenderError(std::string(who) + " wants a text, not a value of type '" + type_name(value.defined()) + "'");
  return value.text();
}
int64_t integer_of(const Value& value, const char* who) {
  if (!value.is_number() || value.is_float())
    throw RenderError(std::string(who) + " wants an integer, not a value of type '" + type_name(value.defined()) + "'");
  return value.integer();
}

using TextMethod = Value (*)(Workspace&, const std::string&, ArgumentReader&);

template <Side side>
Value strip_method(Workspace& workspace, const std::string& text, ArgumentReader& in) {
  const Value characters = in.next("chars", None{});
  if (characters.is_none()) return workspace.text(std::string(strip(text, side)));
  workspace.spend(static_cast<int64_t>(text.size() / 8 * text_of(characters, "strip").size()));
  return workspace.text(std::string(strip(text, text_of(characters, "strip"), side)));
}

// A text, or any of a tuple of texts.
template <bool at_start>
Value edge_method(Workspace&, const std::string& text, ArgumentReader& in) {
  const Value edge = in.next("prefix");
  const auto fits = [&](const Value& one) {
    const std::string& part = text_of(one, at_start ? "startswith" : "endswith");
    return at_start ? text.starts_with(part) : text.ends_with(part);
  };
  if (edge.is_list() && edge.list().is_tuple) return std::any_of(edge.list().items.begin(), edge.list().items.end(), fits);
  return fits(edge);
}

template <bool from_end>
Value find_method(Workspace& workspace, const std::string& text, ArgumentReader& in) {
  const Value part = in.next("sub");
  workspace.spend_search(text, text_of(part, "find"));
  const size_t at = from_end ? text.rfind(text_of(part, "find")) : text.find(text_of(part, "find"));
  return at == std::string::npos ? int64_t{-1} : num_characters(std::string_view(text).substr(0, at));
}

template <bool from_end>
Value split_method(Workspace& workspace, const std::string& text, ArgumentReader& in) {
  const Value separator = in.next("sep", None{});
  const int64_t limit = integer_of(in.next("maxsplit", int64_t{-1}), "split");
  if (!from_end || limit < 0) return split(workspace, text, separator, limit);
  // From the end: all parts, of which the first ones stay together.
  const auto parts = split(workspace, text, separator, -1).list().items;
  const auto count = static_cast<int64_t>(parts.size());
  if (count <= limit + 1) return workspace.list(parts);
  if (!separator.is_text()) throw RenderError("rsplit with a limit wants a separator");
  std::vector<Value> kept(parts.end() - limit, parts.end());
  size_t rest = text.size();
  for (const Value& part : kept) rest -= part.text().size() + separator.text().size();
  kept.insert(kept.begin(), Value(text.substr(0, rest)));
  return workspace.list(std::move(kept));
}

template <bool from_end>
Value partition_method(Workspace& workspace, const std::string& text, ArgumentReader& in) {
  const std::string separator = text_of(in.next("sep"), "partition");
  workspace.spend_search(text, separator);
  const size_t at = from_end ? text.rfind(separator) : text.find(separator);
  if (at == std::string::npos)
    return from_end ? workspace.list({"", "", text}, true) : workspace.list({text, "", ""}, true);
  return workspace.list({text.substr(0, at), separator, text.substr(at + separator.size())}, true);
}

Value replace_method(Workspace& workspace, const std::string& text, ArgumentReader& in) {
  const Value what = in.next("old"), with = in.next("new"), limit = in.next("count", int64_t{-1});
  return workspace.text(replace(workspace, text, text_of(what, "replace"), text_of(with, "replace"), integer_of(limit, "replace")));
}

Value count_method(Workspace& workspace, const std::string& text, ArgumentReader& in) {
  const Value part = in.next("sub");
  const std::string& sought = text_of(part, "count");
  if (sought.empty()) return num_characters(text) + 1;
  workspace.spend_search(text, sought);
  int64_t count = 0;
  for (size_t at = 0; (at = text.find(sought, at)) != std::string::npos; at += sought.size()) ++count;
  return count;
}

Value join_method(Workspace& workspace, const std::string& text, ArgumentReader& in) {
  const ListPtr items = items_of(workspace, in.next("iterable"));
  TextBuilder out(workspace);
  for (size_t i = 0; i < items->items.size(); ++i) {
    if (i > 0) out += text;
    out += text_of(items->items[i], "join");
  }
  return workspace.text(out.take());
}

Value splitlines_method(Workspace& workspace, const std::string& text, ArgumentReader&) {
  Workspace::afford(most_lines(text), kValueBytes);
  std::vector<Value> lines;
  for (const std::string_view line : lines_of(text)) lines.push_back(workspace.text(std::string(line)));
  return workspace.list(std::move(lines));
}

template <bool at_start>
Value remove_edge_method(Workspace& workspace, const std::string& text, ArgumentReader& in) {
  const Value edge = in.next("prefix");
  const std::string& part = text_of(edge, "removeprefix");
  const bool fits = at_start ? text.starts_with(part) : text.ends_with(part);
  if (!fits) return workspace.text(text);
  return workspace.text(at_start ? text.substr(part.size()) : text.substr(0, text.size() - part.size()));
}

template <bool (*right)(char32_t)>
Value every_character(Workspace&, const std::string& text, ArgumentReader&) {
  const auto all = characters_of(text);
  return !all.empty() && std::all_of(all.begin(), all.end(), [](std::string_view c) { return right(code_point(c)); });
}
bool is_alphanumeric(char32_t c) { return is_alphabetic(c) || is_digit(c); }

template <std::string (*changed)(std::string_view)>
Value changed_text(Workspace& workspace, const std::string& text, ArgumentReader&) {
  workspace.spend(8 * static_cast<int64_t>(text.size()));
  return workspace.text(changed(text));
}

template <bool up>
Value case_method(Workspace& workspace, const std::string& text, ArgumentReader&) {
  workspace.spend(16 * static_cast<int64_t>(text.size()));
  return is_cased(text, up);
}

const std::map<std::string, TextMethod>& text_methods() {
  static const std::map<std::string, TextMethod> all = {
      {"strip", strip_method<Side::kBoth>},
      {"lstrip", strip_method<Side::kLeft>},
      {"rstrip", strip_method<Side::kRight>},
      {"startswith", edge_method<true>},
      {"endswith", edge_method<false>},
      {"find", find_method<false>},
      {"rfind", find_method<true>},
      {"split", split_method<false>},
      {"rsplit", split_method<true>},
      {"partition", partition_method<false>},
      {"rpartition", partition_method<true>},
      {"splitlines", splitlines_method},
      {"replace", replace_method},
      {"count", count_method},
      {"join", join_method},
      {"removeprefix", remove_edge_method<true>},
      {"removesuffix", remove_edge_method<false>},
      {"upper", changed_text<upper>},
      {"lower", changed_text<lower>},
      {"title", changed_text<title>},
      {"capitalize", changed_text<capitalize>},
      {"isspace", every_character<is_space>},
      {"isalpha", every_character<is_alphabetic>},
      {"isdigit", every_character<is_digit>},
      {"isalnum", every_character<is_alphanumeric>},
      {"isupper", case_method<true>},
      {"islower", case_method<false>},
  };
  return all;
}

using DictMethod = Value (*)(Workspace&, const Dict&, ArgumentReader&);

Value dict_items(Workspace& workspace, const Dict& dict, ArgumentReader&) {
  std::vector<Value> items;
  for (const auto& [key, value] : dict.entries()) items.push_back(workspace.list({key, value}, true));
  return workspace.list(std::move(items));
}
Value dict_keys(Workspace& workspace, const Dict& dict, ArgumentReader&) {
  std::vector<Value> keys;
  for (const auto& [key, value] : dict.entries()) keys.push_back(key);
  return workspace.list(std::move(keys));
}
Value dict_values(Workspace& workspace, const Dict& dict, ArgumentReader&) {
  std::vector<Value> values;
  for (const auto& [key, value] : dict.entries()) values.push_back(value);
  return workspace.list(std::move(values));
}
Value dict_get(Workspace&, const Dict& dict, ArgumentReader& in) {
  const Value key = in.next("key"), fallback = in.next("default", None{});
  const Value* found = dict.find(key);
  return found ? *found : fallback;
}
Value dict_copy(Workspace& workspace, const Dict& dict, ArgumentReader&) { return workspace.dict(dict); }

const std::map<std::string, DictMethod>& dict_methods() {
  static const std::map<std::string, DictMethod> all = {
      {"items", dict_items}, {"keys", dict_keys}, {"values", dict_values}, {"get", dict_get}, {"copy", dict_copy}};
  return all;
}

// Their names are attributes in Python, but a template may not change what it is given.
bool would_change(const Value& value, const std::string& name) {
  constexpr std::string_view kOfLists[] = {"append", "extend", "insert", "pop", "remove", "reverse", "sort", "clear"};
  constexpr std::string_view kOfDicts[] = {"update", "pop", "popitem", "setdefault", "clear"};
  return (value.is_list() && std::find(std::begin(kOfLists), std::end(kOfLists), name) != std::end(kOfLists)) ||
         (value.is_dict() && std::find(std::begin(kOfDicts), std::end(kOfDicts), name) != std::end(kOfDicts));
}

Value bound(const Value& value, const std::string& name, std::function<Value(const Arguments&)> body) {
  const Value made = make_function(name, std::move(body));
  made.object().extent = extent_around(value);
  return made;
}

// Of a table of methods; undefined if none has the name. held: what they are given of the value.
template <class Methods, class Held>
Value bound_from(const Methods& methods, Workspace& workspace, const Value& value, const std::string& name,
                 const Held& (Value::*held)() const) {
  const auto found = methods.find(name);
  if (found == methods.end()) return Value::undefined("");
  return bound(value, name, [&workspace, value, found, held](const Arguments& arguments) {
    if (value.is_text()) workspace.spend(static_cast<int64_t>(value.text().size()));
    ArgumentReader in(found->first + "()", arguments);
    Value out = found->second(workspace, (value.*held)(), in);
    in.finish();
    return out;
  });
}

Value list_method(Workspace& workspace, const Value& value, const std::string& name) {
  const bool counts = name == "count";
  if (!counts && name != "index") return Value::undefined("");
  return bound(value, name, [&workspace, value, counts](const Arguments& arguments) -> Value {
    ArgumentReader in(counts ? "count()" : "index()", arguments);
    const Value sought = in.next("value");
    in.finish();
    const auto& items = value.list().items;
    const auto same = [&](const Value& one) { return equal(workspace, one, sought); };
    if (counts) return static_cast<int64_t>(std::count_if(items.begin(), items.end(), same));
    const auto found = std::find_if(items.begin(), items.end(), same);
    if (found == items.end()) throw RenderError("index(): the value is not in the list");
    return static_cast<int64_t>(found - items.begin());
  });
}

Value range(Workspace& workspace, const Arguments& arguments) {
  constexpr int64_t kMost = 100000;
  ArgumentReader in("range()", arguments);
  const Value first = in.next("start"), second = in.next("stop", None{}), third = in.next("step", int64_t{1});
  in.finish();
  const int64_t begin = second.is_none() ? 0 : integer_of(first, "range"), step = integer_of(third, "range");
  const int64_t end = integer_of(second.is_none() ? first : second, "range");
  if (step == 0) throw RenderError("range(): the step is 0");
  const double count = (static_cast<double>(end) - static_cast<double>(begin)) / static_cast<double>(step);
  if (count > kMost) throw RenderError("range(): more than " + std::to_string(kMost) + " numbers");
  std::vector<Value> numbers;
  // The bounds are near each other now, or nothing is between them.
  if (count > 0)
    for (int64_t i = 0; i < kMost; ++i) {
      int64_t at = 0;
      if (__builtin_mul_overflow(i, step, &at) || __builtin_add_overflow(begin, at, &at) || (step > 0 ? at >= end : at <= end)) break;
      numbers.emplace_back(at);
    }
  return workspace.list(std::move(numbers));
}

Value make_dict(Workspace& workspace, const Arguments& arguments) {
  Dict dict;
  if (arguments.positional.size() > 1) throw RenderError("dict(): more than one argument without a name");
  for (const Value& from : arguments.positional) {
    if (from.is_dict()) {
      for (const auto& [key, value] : from.dict().entries()) dict.set(key, value);
      continue;
    }
    const ListPtr pairs = items_of(workspace, from);
    for (const Value& pair : pairs->items) {
      if (!pair.is_list() || pair.list().items.size() != 2) throw RenderError("dict(): wants pairs");
      dict.set(pair.list().items[0], pair.list().items[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) dict.set(name, value);
  return workspace.dict(std::move(dict));
}

Value strftime_now(Workspace& workspace, const Arguments& arguments) {
  ArgumentReader in("strftime_now()", arguments);
  const Value format = in.next("format");
  in.finish();
  const std::string& pattern = text_of(format, "strftime_now");
  if (pattern.size() > 200) throw RenderError("strftime_now(): a format longer than 200 characters");
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char buffer[4096];
  const size_t size = std::strftime(buffer, sizeof buffer, pattern.c_str(), &parts);
  return workspace.text(std::string(buffer, size));
}

Value raise_exception(Workspace& workspace, const Arguments& arguments) {
  ArgumentReader in("raise_exception()", arguments);
  throw RefusedByTemplate(to_text(workspace, in.next("message")));
}

}  // namespace

Value make_function(std::string name, std::function<Value(const Arguments&)> body) {
  return ObjectPtr(std::make_shared<Function>(std::move(name), std::move(body)));
}

Value method(Workspace& workspace, const Value& value, const std::string& name) {
  if (value.is_text()) return bound_from(text_methods(), workspace, value, name, &Value::text);
  if (would_change(value, name))
    return make_function(name, [name](const Arguments&) -> Value {
      throw RenderError("`" + name + "` would change a value; only a namespace can be changed");
    });
  if (value.is_list()) return list_method(workspace, value, name);
  if (!value.is_dict()) return Value::undefined("");
  return bound_from(dict_methods(), workspace, value, name, &Value::dict);
}

std::map<std::string, Value> functions(Workspace& workspace) {
  std::map<std::string, Value> all;
  const auto add = [&](const char* name, Value (*body)(Workspace&, const Arguments&)) {
    all[name] = make_function(name, [&workspace, body](const Arguments& arguments) { return body(workspace, arguments); });
  };
  add("range", range);
  add("dict", make_dict);
  add("strftime_now", strftime_now);
  add("raise_exception", raise_exception);
  return all;
}

Value split(Workspace& workspace, const std::string& text, const Value& separator, int64_t limit) {
  workspace.spend(4 * static_cast<int64_t>(text.size()));
  std::vector<Value> parts;
  std::string_view rest = text;
  if (separator.is_none()) {
    for (rest = strip(rest, Side::kLeft); !rest.empty(); rest = strip(rest, Side::kLeft)) {
      if (static_cast<int64_t>(parts.size()) == limit) {
        parts.push_back(workspace.text(std::string(strip(rest, Side::kRight))));
        break;
      }
      size_t end = 0;
      for (Utf8Step step; end < rest.size() && !is_space((step = utf8_step(rest.substr(end))).code_point);) end += step.length;
      parts.push_back(workspace.text(std::string(rest.substr(0, end))));
      rest.remove_prefix(end);
    }
    return workspace.list(std::move(parts));
  }
  const std::string& at_text = text_of(separator, "split");
  if (at_text.empty()) throw RenderError("split: the separator is empty");
  workspace.spend_search(text, at_text);
  for (size_t at; static_cast<int64_t>(parts.size()) != limit && (at = rest.find(at_text)) != std::string_view::npos;) {
    parts.push_back(workspace.text(std::string(rest.substr(0, at))));
    rest.remove_prefix(at + at_text.size());
  }
  parts.push_back(workspace.text(std::string(rest)));
  return workspace.list(std::move(parts));
}

std::string replace(Workspace& workspace, const std::string& text, const std::string& what, const std::string& with, int64_t limit) {
  TextBuilder out(workspace);
  int64_t done = 0;
  if (what.empty()) {  // between all characters, and at both ends
    for (const std::string_view c : characters_of(text)) {
      if (done++ < limit || limit < 0) out += with;
      out += c;
      workspace.spend(4);
    }
    if (done < limit || limit < 0) out += with;
    return out.take();
  }
  workspace.spend_search(text, what);
  size_t from = 0;
  for (size_t at; (limit < 0 || done < limit) && (at = text.find(what, from)) != std::string::npos; ++done) {
    (out += std::string_view(text).substr(from, at - from)) += with;
    from = at + what.size();
    workspace.spend(4);
  }
  return (out += std::string_view(text).substr(from)).take();
}

}  // namespace tandem::text::jinja
