// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/jinja_value/operation.h"

#include <algorithm>
#include <cmath>

#include "tandem/text/jinja_value/characters.h"
#include "tandem/text/jinja_value/format.h"
#include "tandem/text/jinja_value/method.h"

namespace tandem::text::jinja {
namespace {

[[noreturn]] void mismatch(const std::string& sign, const Value& left, const Value& right) {
  if (long_integer(left) || long_integer(right)) throw RenderError("an integer does not fit into 64 bits");
  throw RenderError("`" + sign + "` does not go with '" + type_name(left.defined()) + "' and '" + type_name(right.defined()) + "'");
}

// By reference: the value is there only once `overflow` is.
int64_t checked(bool overflow, const int64_t& value) {
  if (overflow) throw RenderError("an integer does not fit into 64 bits");
  return value;
}

int64_t integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result = checked(__builtin_mul_overflow(result, base, &result), result);
    if (exponent > 1) base = checked(__builtin_mul_overflow(base, base, &base), base);
  }
  return result;
}

Value integers(const std::string& sign, int64_t a, int64_t b) {
  int64_t out = 0;
  if (sign == "+") return checked(__builtin_add_overflow(a, b, &out), out);
  if (sign == "-") return checked(__builtin_sub_overflow(a, b, &out), out);
  if (sign == "*") return checked(__builtin_mul_overflow(a, b, &out), out);
  if (sign == "**") return b < 0 ? Value(std::pow(static_cast<double>(a), static_cast<double>(b))) : Value(integer_power(a, b));
  if (b == 0) throw RenderError("division by zero");
  if (sign == "/") return static_cast<double>(a) / static_cast<double>(b);
  if (b == -1) return sign == "%" ? Value(int64_t{0}) : Value(checked(__builtin_sub_overflow(int64_t{0}, a, &out), out));
  const int64_t rest = a % b != 0 && (a % b < 0) != (b < 0) ? a % b + b : a % b;  // has the sign of b
  return sign == "%" ? rest : (a - rest) / b;
}

Value numbers(const std::string& sign, double a, double b) {
  if (sign == "+") return a + b;
  if (sign == "-") return a - b;
  if (sign == "*") return a * b;
  if (sign == "**") return std::pow(a, b);
  if (b == 0) throw RenderError("division by zero");
  if (sign == "/") return a / b;
  if (sign == "//") return std::floor(a / b);
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

// Paid for before the memory is taken.
void spend_product(Workspace& workspace, int64_t times, int64_t each) {
  constexpr int64_t kMost = int64_t{1} << 50;  // beyond any budget
  workspace.spend(each > 0 && times > kMost / each ? kMost : times * each);
}

Value repeated(Workspace& workspace, const Value& value, int64_t times) {
  times = std::max<int64_t>(times, 0);
  if (value.is_text()) {
    spend_product(workspace, times, static_cast<int64_t>(value.text().size()));
    Workspace::afford(times, static_cast<int64_t>(value.text().size()));
    std::string out;
    for (int64_t i = 0; !value.text().empty() && i < times; ++i) out += value.text();
    return workspace.text(std::move(out));
  }
  std::vector<Value> items;
  const auto& once = value.list().items;
  spend_product(workspace, times, 32 * static_cast<int64_t>(once.size()));
  Workspace::afford(times, kValueBytes * static_cast<int64_t>(once.size()));
  for (int64_t i = 0; !once.empty() && i < times; ++i) items.insert(items.end(), once.begin(), once.end());
  return workspace.list(std::move(items), value.list().is_tuple);
}

bool is_sequence(const Value& value) { return value.is_text() || value.is_list(); }

int sign_of(auto left, auto right) { return left < right ? -1 : right < left ? 1 : 0; }

}  // namespace

Value binary(Workspace& workspace, const std::string& sign, const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) {
    if (left.is_float() || right.is_float()) return numbers(sign, left.floating(), right.floating());
    return integers(sign, left.integer(), right.integer());
  }
  if (sign == "+" && left.is_text() && right.is_text()) {
    TextBuilder sum(workspace);
    (sum += left.text()) += right.text();
    return workspace.text(sum.take());
  }
  if (sign == "+" && left.is_list() && right.is_list() && left.list().is_tuple == right.list().is_tuple) {
    Workspace::afford(static_cast<int64_t>(left.list().items.size() + right.list().items.size()), kValueBytes);
    std::vector<Value> items = left.list().items;
    items.insert(items.end(), right.list().items.begin(), right.list().items.end());
    return workspace.list(std::move(items), left.list().is_tuple);
  }
  if (sign == "*" && is_sequence(left) && right.is_number() && !right.is_float()) return repeated(workspace, left, right.integer());
  if (sign == "*" && is_sequence(right) && left.is_number() && !left.is_float()) return repeated(workspace, right, left.integer());
  if (sign == "%" && left.is_text()) {
    const bool several = right.is_list() && right.list().is_tuple;
    return workspace.text(format_percent(workspace, left.text(), several ? right.list().items : std::vector<Value>{right.defined()}));
  }
  mismatch(sign, left, right);
}

Value negative(const Value& value) {
  if (value.is_float()) return -value.floating();
  if (!value.is_number()) throw RenderError(std::string("`-` does not go with '") + type_name(value.defined()) + "'");
  int64_t out = 0;
  return checked(__builtin_sub_overflow(int64_t{0}, value.integer(), &out), out);
}

bool equal(Workspace& workspace, const Value& left, const Value& right) {
  workspace.spend(8);
  if (left.is_number() && right.is_number())
    return left.is_float() || right.is_float() ? left.floating() == right.floating() : left.integer() == right.integer();
  if (left.is_text() && right.is_text()) {
    workspace.spend(static_cast<int64_t>(std::min(left.text().size(), right.text().size())) / 8);
    return left.text() == right.text();
  }
  if (left.is_list() && right.is_list()) {
    const List &a = left.list(), &b = right.list();
    if (a.is_tuple != b.is_tuple || a.items.size() != b.items.size()) return false;
    for (size_t i = 0; i < a.items.size(); ++i)
      if (!equal(workspace, a.items[i], b.items[i])) return false;
    return true;
  }
  if (left.is_dict() && right.is_dict()) {
    if (left.dict().entries().size() != right.dict().entries().size()) return false;
    for (const auto& [key, value] : left.dict().entries()) {
      const Value* other = right.dict().find(key);
      if (!other || !equal(workspace, value, *other)) return false;
    }
    return true;
  }
  if (const LongInteger *a = long_integer(left), *b = long_integer(right); a && b) return a->digits == b->digits;
  if (left.is_object() && right.is_object()) return left.object_pointer() == right.object_pointer();
  return (left.is_none() && right.is_none()) || (left.is_undefined() && right.is_undefined());
}

int order(Workspace& workspace, const Value& left, const Value& right) {
  workspace.spend(8);
  if (left.is_number() && right.is_number()) {
    if (left.is_float() || right.is_float()) return sign_of(left.floating(), right.floating());
    return sign_of(left.integer(), right.integer());
  }
  if (left.is_text() && right.is_text()) {
    workspace.spend(static_cast<int64_t>(std::min(left.text().size(), right.text().size())) / 8);
    return sign_of(left.text().compare(right.text()), 0);
  }
  if (left.is_list() && right.is_list() && left.list().is_tuple == right.list().is_tuple) {
    const auto &a = left.list().items, &b = right.list().items;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
      if (!equal(workspace, a[i], b[i])) return order(workspace, a[i], b[i]);
    return sign_of(a.size(), b.size());
  }
  mismatch("<", left, right);
}

bool contains(Workspace& workspace, const Value& whole, const Value& part) {
  if (whole.is_text()) {
    if (!part.is_text()) mismatch("in", part, whole);
    workspace.spend_search(whole.text(), part.text());
    return whole.text().find(part.text()) != std::string::npos;
  }
  if (whole.is_dict()) return whole.dict().find(part) != nullptr;
  if (whole.is_object()) mismatch("in", part, whole);
  const ListPtr items = items_of(workspace, whole);
  return std::any_of(items->items.begin(), items->items.end(), [&](const Value& one) { return equal(workspace, one, part); });
}

bool compare(Workspace& workspace, const std::string& sign, const Value& left, const Value& right) {
  if (sign == "==") return equal(workspace, left, right);
  if (sign == "!=") return !equal(workspace, left, right);
  if (sign == "in") return contains(workspace, right, left);
  if (sign == "not in") return !contains(workspace, right, left);
  const bool unordered = (left.is_float() && std::isnan(left.floating())) || (right.is_float() && std::isnan(right.floating()));
  const int found = order(workspace, left, right);
  if (unordered) return false;
  if (sign == "<") return found < 0;
  if (sign == "<=") return found <= 0;
  return sign == ">" ? found > 0 : found >= 0;
}

int64_t length(const Value& value) {
  if (value.is_text()) return num_characters(value.text());
  if (value.is_list()) return static_cast<int64_t>(value.list().items.size());
  if (value.is_dict()) return static_cast<int64_t>(value.dict().entries().size());
  if (value.is_undefined()) return 0;
  throw RenderError(std::string("a value of type '") + type_name(value) + "' has no length");
}

Value item(Workspace& workspace, const Value& value, const Value& key) {
  const auto missing = [&](const std::string& what) {
    return Value::undefined(std::string("'") + type_name(value) + " object' has no " + what);
  };
  if (value.is_dict()) {
    if (const Value* found = value.dict().find(key)) return *found;
  } else if (is_sequence(value) && key.is_number() && !key.is_float()) {
    if (value.is_text()) workspace.spend(static_cast<int64_t>(value.text().size()));
    const int64_t size = length(value), at = key.integer() < 0 ? key.integer() + size : key.integer();
    if (at < 0 || at >= size) return missing("element " + std::to_string(key.integer()));
    if (value.is_list()) return value.list().items[static_cast<size_t>(at)];
    return workspace.text(std::string(characters_between(value.text(), at, at + 1)));
  }
  if (key.is_text()) {
    const Value found = value.is_object() ? value.object().attribute(key.text()) : method(workspace, value.defined(), key.text());
    return found.is_undefined() ? missing("attribute '" + key.text() + "'") : found;
  }
  value.defined();
  return missing("element " + to_text(workspace, key));
}

Value slice(Workspace& workspace, const Value& value, const SliceBounds& bounds) {
  if (!is_sequence(value))
    throw RenderError(std::string("a value of type '") + type_name(value.defined()) + "' has no parts to slice");
  const int64_t size = length(value);
  const int64_t step = bounds.step.value_or(1);
  if (step == 0) throw RenderError("the step of a slice is 0");
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const auto place = [&](const std::optional<int64_t>& bound, int64_t fallback) {
    if (!bound) return fallback;
    return std::clamp(*bound < 0 ? *bound + size : *bound, low, high);
  };
  const int64_t begin = place(bounds.begin, step > 0 ? low : high), end = place(bounds.end, step > 0 ? high : low);
  if (value.is_text()) workspace.spend(2 * static_cast<int64_t>(value.text().size()));
  if (value.is_text() && step == 1) return workspace.text(std::string(characters_between(value.text(), begin, end)));
  const ListPtr all = items_of(workspace, value);
  std::vector<Value> items;
  for (int64_t at = begin; step > 0 ? at < end : at > end;) {
    items.push_back(all->items[static_cast<size_t>(at)]);
    if (step > size || step < -size) break;  // further would leave the sequence, or the range of integers
    at += step;
  }
  if (value.is_list()) return workspace.list(std::move(items), value.list().is_tuple);
  std::string out;
  for (const Value& one : items) out += one.text();
  return workspace.text(std::move(out));
}

}  // namespace tandem::text::jinja
