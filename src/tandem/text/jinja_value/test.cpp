// SPDX-License-Identifier: Apache-2.0
// What stands behind `is`.

#include "tandem/base/options.h"
#include "tandem/text/jinja_value/characters.h"
#include "tandem/text/jinja_value/filter.h"
#include "tandem/text/jinja_value/operation.h"

namespace tandem::text::jinja {
namespace {

using Test = bool (*)(Workspace&, const Value&, ArgumentReader&);

int64_t integer_of(const Value& value) {
  if (!value.is_number() || value.is_float())
    throw RenderError(std::string("a test of integers meets a value of type '") + type_name(value.defined()) + "'");
  return value.integer();
}

bool is_divisible(Workspace&, const Value& value, ArgumentReader& in) {
  const int64_t by = integer_of(in.next("num")), number = integer_of(value);
  if (by == 0) throw RenderError("division by zero");
  return by == -1 || number % by == 0;
}

// Iterable but for numbers, none and objects.
bool is_iterable(const Value& value) { return value.is_text() || value.is_list() || value.is_dict() || value.is_undefined(); }

template <bool up>
bool has_case(Workspace& workspace, const Value& value, ArgumentReader&) {
  if (!value.is_text()) return false;
  workspace.spend(16 * static_cast<int64_t>(value.text().size()));
  return is_cased(value.text(), up);
}

const std::map<std::string, Test>& tests() {
  static const std::map<std::string, Test> all = {
      {"defined", [](Workspace&, const Value& v, ArgumentReader&) { return !v.is_undefined(); }},
      {"undefined", [](Workspace&, const Value& v, ArgumentReader&) { return v.is_undefined(); }},
      {"none", [](Workspace&, const Value& v, ArgumentReader&) { return v.is_none(); }},
      {"boolean", [](Workspace&, const Value& v, ArgumentReader&) { return v.is_bool(); }},
      {"true", [](Workspace&, const Value& v, ArgumentReader&) { return v.is_bool() && v.boolean(); }},
      {"false", [](Workspace&, const Value& v, ArgumentReader&) { return v.is_bool() && !v.boolean(); }},
      {"integer", [](Workspace&, const Value& v, ArgumentReader&) { return v.is_int() || long_integer(v); }},
      {"float", [](Workspace&, const Value& v, ArgumentReader&) { return v.is_float(); }},
      {"number", [](Workspace&, const Value& v, ArgumentReader&) { return v.is_number() || long_integer(v); }},
      {"string", [](Workspace&, const Value& v, ArgumentReader&) { return v.is_text(); }},
      {"mapping", [](Workspace&, const Value& v, ArgumentReader&) { return v.is_dict(); }},
      {"iterable", [](Workspace&, const Value& v, ArgumentReader&) { return is_iterable(v); }},
      {"sequence", [](Workspace&, const Value& v, ArgumentReader&) { return is_iterable(v); }},
      {"callable", [](Workspace&, const Value& v, ArgumentReader&) { return v.is_object() && v.object().callable(); }},
      {"escaped", [](Workspace&, const Value&, ArgumentReader&) { return false; }},
      {"upper", has_case<true>},
      {"lower", has_case<false>},
      {"odd", [](Workspace&, const Value& v, ArgumentReader&) { return integer_of(v) % 2 != 0; }},
      {"even", [](Workspace&, const Value& v, ArgumentReader&) { return integer_of(v) % 2 == 0; }},
      {"divisibleby", is_divisible},
      {"in", [](Workspace& w, const Value& v, ArgumentReader& in) { return contains(w, in.next("seq"), v); }},
      {"sameas", [](Workspace& w, const Value& v, ArgumentReader& in) {
         const Value other = in.next("other");
         return std::string_view(type_name(v)) == type_name(other) && equal(w, v, other);
       }},
  };
  return all;
}

// Names of the tests that are comparisons.
const std::map<std::string, std::string>& comparisons() {
  static const std::map<std::string, std::string> all = {
      {"eq", "=="}, {"equalto", "=="}, {"==", "=="}, {"ne", "!="}, {"!=", "!="}, {"lt", "<"}, {"lessthan", "<"}, {"<", "<"},
      {"le", "<="}, {"<=", "<="}, {"gt", ">"}, {"greaterthan", ">"}, {">", ">"}, {"ge", ">="}, {">=", ">="}};
  return all;
}

}  // namespace

bool apply_test(Workspace& workspace, const std::string& name, const Value& value, const Arguments& arguments) {
  ArgumentReader in("the test `" + name + "`", arguments);
  bool right = false;
  if (const auto sign = comparisons().find(name); sign != comparisons().end()) {
    right = compare(workspace, sign->second, value, in.next("other"));
  } else if (const auto found = tests().find(name); found != tests().end()) {
    right = found->second(workspace, value, in);
  } else {
    std::vector<std::string> known;
    for (const auto& [other, unused] : tests()) known.push_back(other);
    for (const auto& [other, unused] : comparisons()) known.push_back(other);
    throw RenderError("the test `" + name + "` is not supported; the nearest is `" + nearest_name(name, known) + "`");
  }
  in.finish();
  return right;
}

}  // namespace tandem::text::jinja
