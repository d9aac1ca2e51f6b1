// SPDX-License-Identifier: Apache-2.0
// Filters of lists and dicts.
#include <algorithm>
#include <cctype>
#include <functional>

#include "tandem/text/jinja_value/characters.h"
#include "tandem/text/jinja_value/filter.h"
#include "tandem/text/jinja_value/format.h"
#include "tandem/text/jinja_value/method.h"
#include "tandem/text/jinja_value/operation.h"

namespace tandem::text::jinja {
namespace {

using Items = std::vector<Value>;

// The value behind a path such as `function.name` or `0.text`.
Value attribute_at(Workspace& workspace, Value value, const Value& path) {
  if (path.is_int()) return item(workspace, value, path);
  if (!path.is_text()) throw RenderError("an attribute is named by a text or a number");
  std::string_view rest = path.text();
  while (true) {
    const size_t dot = rest.find('.');
    const std::string part(rest.substr(0, dot));
    const bool number = !part.empty() && part.size() < 10 &&
                        std::all_of(part.begin(), part.end(), [](unsigned char c) { return std::isdigit(c); });
    value = item(workspace, value, number ? Value(int64_t{std::stol(part)}) : Value(part));
    if (dot == std::string_view::npos) return value;
    rest.remove_prefix(dot + 1);
  }
}

std::function<Value(const Value&)> key_of(Workspace& workspace, const Value& attribute, bool case_sensitive) {
  return [&workspace, attribute, case_sensitive](const Value& one) {
    const Value value = attribute.is_none() ? one : attribute_at(workspace, one, attribute);
    return value.is_text() && !case_sensitive ? workspace.text(lower(value.text())) : value;
  };
}

Value length_filter(Workspace&, const Value& value, ArgumentReader&) {
  return length(value);
}

Value list_filter(Workspace& workspace, const Value& value, ArgumentReader&) {
  return workspace.list(items_of(workspace, value)->items);
}

template <bool last>
Value end_filter(Workspace& workspace, const Value& value, ArgumentReader&) {
  const ListPtr items = items_of(workspace, value);
  if (items->items.empty()) return Value::undefined(std::string("an empty sequence has no ") + (last ? "last" : "first") + " item");
  return last ? items->items.back() : items->items.front();
}

Value join_filter(Workspace& workspace, const Value& value, ArgumentReader& in) {
  const Value between = in.next("d", ""), attribute = in.next("attribute", None{});
  const std::string separator = to_text(workspace, between);
  TextBuilder out(workspace);
  bool first = true;
  const ListPtr all = items_of(workspace, value);
  for (const Value& one : all->items) {
    if (!first) out += separator;
    out += to_text(workspace, attribute.is_none() ? one : attribute_at(workspace, one, attribute));
    first = false;
  }
  return workspace.text(out.take());
}

Value reverse_filter(Workspace& workspace, const Value& value, ArgumentReader&) {
  Items items = items_of(workspace, value)->items;
  std::reverse(items.begin(), items.end());
  if (!value.is_text()) return workspace.list(std::move(items));
  std::string out;
  for (const Value& one : items) out += one.text();
  return workspace.text(std::move(out));
}

Value items_filter(Workspace& workspace, const Value& value, ArgumentReader&) {
  if (value.is_undefined()) return workspace.list({});
  if (!value.is_dict()) throw RenderError(std::string("items wants a dict, not a value of type '") + type_name(value) + "'");
  return method(workspace, value, "items").object().call({});
}

Value map_filter(Workspace& workspace, const Value& value, ArgumentReader& in) {
  Items out;
  if (!in.has_positional()) {
    const Value attribute = in.next("attribute"), fallback = in.next("default", Value::undefined(""));
    const ListPtr all = items_of(workspace, value);
    for (const Value& one : all->items) {
      Value found = attribute_at(workspace, one, attribute);
      out.push_back(found.is_undefined() && !fallback.is_undefined() ? fallback : std::move(found));
    }
    return workspace.list(std::move(out));
  }
  const Arguments& arguments = in.take_all();
  if (!arguments.positional[0].is_text()) throw RenderError("map wants the name of a filter, or attribute=");
  const Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.named};
  const ListPtr all = items_of(workspace, value);
  for (const Value& one : all->items)
    out.push_back(apply_filter(workspace, arguments.positional[0].text(), one, rest));
  return workspace.list(std::move(out));
}

template <bool keep, bool by_attribute>
Value select_filter(Workspace& workspace, const Value& value, ArgumentReader& in) {
  const size_t test_at = by_attribute ? 1 : 0;
  const Arguments& arguments = in.take_all();
  const Items& given = arguments.positional;
  if (given.size() < test_at) throw RenderError("selectattr and rejectattr want the name of an attribute");
  const bool tested = given.size() > test_at;
  if (tested && !given[test_at].is_text()) throw RenderError("a test is named by a text");
  Arguments rest;
  if (tested) rest = {{given.begin() + static_cast<ptrdiff_t>(test_at) + 1, given.end()}, arguments.named};
  Items out;
  const ListPtr all = items_of(workspace, value);
  for (const Value& one : all->items) {
    const Value subject = by_attribute ? attribute_at(workspace, one, given[0]) : one;
    const bool right = tested ? apply_test(workspace, given[test_at].text(), subject, rest) : truth(subject);
    if (right == keep) out.push_back(one);
  }
  return workspace.list(std::move(out));
}

void sort_by(Workspace& workspace, Items& items, const std::function<Value(const Value&)>& key, bool reverse) {
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& one : items) keyed.emplace_back(key(one), one);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? order(workspace, b.first, a.first) < 0 : order(workspace, a.first, b.first) < 0;
  });
  items.clear();
  for (auto& [unused, one] : keyed) items.push_back(std::move(one));
}

Value sort_filter(Workspace& workspace, const Value& value, ArgumentReader& in) {
  const bool reverse = truth(in.next("reverse", false)), case_sensitive = truth(in.next("case_sensitive", false));
  const Value attribute = in.next("attribute", None{});
  Items items = items_of(workspace, value)->items;
  sort_by(workspace, items, key_of(workspace, attribute, case_sensitive), reverse);
  return workspace.list(std::move(items));
}

Value dictsort_filter(Workspace& workspace, const Value& value, ArgumentReader& in) {
  const bool case_sensitive = truth(in.next("case_sensitive", false));
  const Value by = in.next("by", "key");
  const bool reverse = truth(in.next("reverse", false));
  const bool by_value = by.is_text() && by.text() == "value";
  Items pairs = items_filter(workspace, value, in).list().items;
  sort_by(workspace, pairs, key_of(workspace, int64_t{by_value}, case_sensitive), reverse);
  return workspace.list(std::move(pairs));
}

Value unique_filter(Workspace& workspace, const Value& value, ArgumentReader& in) {
  const bool case_sensitive = truth(in.next("case_sensitive", false));
  const Value attribute = in.next("attribute", None{});
  const auto key = key_of(workspace, attribute, case_sensitive);
  Items out, keys;
  const ListPtr all = items_of(workspace, value);
  for (const Value& one : all->items) {
    const Value found = key(one);
    if (std::any_of(keys.begin(), keys.end(), [&](const Value& other) { return equal(workspace, found, other); })) continue;
    keys.push_back(found);
    out.push_back(one);
  }
  return workspace.list(std::move(out));
}

template <bool most>
Value extreme_filter(Workspace& workspace, const Value& value, ArgumentReader& in) {
  const bool case_sensitive = truth(in.next("case_sensitive", false));
  const Value attribute = in.next("attribute", None{});
  const auto key = key_of(workspace, attribute, case_sensitive);
  const ListPtr items = items_of(workspace, value);
  if (items->items.empty()) return Value::undefined("an empty sequence has no largest or smallest item");
  const Value* best = &items->items[0];
  for (const Value& one : items->items) {
    const int found = order(workspace, key(one), key(*best));
    if (most ? found > 0 : found < 0) best = &one;
  }
  return *best;
}

Value sum_filter(Workspace& workspace, const Value& value, ArgumentReader& in) {
  const Value attribute = in.next("attribute", None{});
  Value total = in.next("start", int64_t{0});
  const ListPtr all = items_of(workspace, value);
  for (const Value& one : all->items)
    total = binary(workspace, "+", total, attribute.is_none() ? one : attribute_at(workspace, one, attribute));
  return total;
}

Value attribute_filter(Workspace& workspace, const Value& value, ArgumentReader& in) {
  const Value name = in.next("name");
  if (!value.is_object() || !name.is_text()) return Value::undefined("attr finds no such attribute");
  return item(workspace, value, name);
}

Value batch_filter(Workspace& workspace, const Value& value, ArgumentReader& in) {
  const Value count = in.next("linecount"), fill = in.next("fill_with", None{});
  if (!count.is_int() || count.integer() < 1) throw RenderError("batch wants a number of at least 1");
  Items rows, row;
  const ListPtr all = items_of(workspace, value);
  for (const Value& one : all->items) {
    row.push_back(one);
    if (static_cast<int64_t>(row.size()) == count.integer()) rows.push_back(workspace.list(std::exchange(row, {})));
  }
  if (!row.empty()) {
    workspace.spend(32 * std::min(count.integer(), int64_t{1} << 40));
    if (!fill.is_none()) Workspace::afford(count.integer(), kValueBytes);
    while (!fill.is_none() && static_cast<int64_t>(row.size()) < count.integer()) row.push_back(fill);
    rows.push_back(workspace.list(std::move(row)));
  }
  return workspace.list(std::move(rows));
}

}  // namespace

const std::map<std::string, Filter>& list_filters() {
  static const std::map<std::string, Filter> all = {
      {"length", length_filter},
      {"count", length_filter},
      {"list", list_filter},
      {"first", end_filter<false>},
      {"last", end_filter<true>},
      {"join", join_filter},
      {"reverse", reverse_filter},
      {"items", items_filter},
      {"map", map_filter},
      {"select", select_filter<true, false>},
      {"reject", select_filter<false, false>},
      {"selectattr", select_filter<true, true>},
      {"rejectattr", select_filter<false, true>},
      {"sort", sort_filter},
      {"dictsort", dictsort_filter},
      {"unique", unique_filter},
      {"max", extreme_filter<true>},
      {"min", extreme_filter<false>},
      {"sum", sum_filter},
      {"attr", attribute_filter},
      {"batch", batch_filter},
  };
  return all;
}

}  // namespace tandem::text::jinja
