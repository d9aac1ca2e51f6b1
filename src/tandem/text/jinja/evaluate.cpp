// SPDX-License-Identifier: Apache-2.0
// Expressions.
#include "tandem/text/jinja/renderer.h"
#include "tandem/text/jinja/scope.h"
#include "tandem/text/jinja_value/filter.h"
#include "tandem/text/jinja_value/format.h"
#include "tandem/text/jinja_value/method.h"
#include "tandem/text/jinja_value/operation.h"

namespace tandem::text::jinja {

Value Renderer::evaluate(const Expression& one) {
  const Deepened deepened(depth_, limits_.depth);
  workspace_.spend(64);
  line_ = one.line;
  return dispatch(one);
}

Value Renderer::dispatch(const Expression& one) {
  switch (one.kind) {
    case ExpressionKind::kConstant: return one.constant;
    case ExpressionKind::kName: return named(one.name);
    case ExpressionKind::kList:
    case ExpressionKind::kTuple: return list(one);
    case ExpressionKind::kDict: return dict(one);
    case ExpressionKind::kNegative: return negative(evaluate(*one.parts[0]));
    case ExpressionKind::kPositive: return binary(workspace_, "+", int64_t{0}, evaluate(*one.parts[0]));
    case ExpressionKind::kNot: return !truth(evaluate(*one.parts[0]));
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr: {
      Value left = evaluate(*one.parts[0]);
      return truth(left) == (one.kind == ExpressionKind::kAnd) ? evaluate(*one.parts[1]) : left;
    }
    case ExpressionKind::kBinary: {
      const Value left = evaluate(*one.parts[0]), right = evaluate(*one.parts[1]);
      return binary(workspace_, one.name, left, right);
    }
    case ExpressionKind::kConcat: return concat(one);
    case ExpressionKind::kCompare: return compare_chain(one);
    case ExpressionKind::kCondition: return condition(one);
    case ExpressionKind::kAttribute: return attribute(one);
    case ExpressionKind::kItem: {
      const Value value = evaluate(*one.parts[0]), key = evaluate(*one.parts[1]);
      return item(workspace_, value, key);
    }
    case ExpressionKind::kSlice: return sliced(one);
    case ExpressionKind::kCall: return call(one);
    case ExpressionKind::kFilter: return filter(one, nullptr);
    case ExpressionKind::kTest: {
      const Value value = evaluate(*one.parts[0]);
      return apply_test(workspace_, one.name, value, arguments(one));
    }
  }
  return {};
}

Value Renderer::named(const std::string& name) const {
  for (const Frame* at = frame_.get(); at; at = at->parent.get())
    if (const auto found = at->names.find(name); found != at->names.end()) return found->second;
  if (const auto found = globals_.find(name); found != globals_.end()) return found->second;
  return Value::undefined("'" + name + "' is undefined");
}

Value Renderer::list(const Expression& one) {
  std::vector<Value> items;
  for (const ExpressionPtr& part : one.parts) items.push_back(evaluate(*part));
  return workspace_.list(std::move(items), one.kind == ExpressionKind::kTuple);
}

Value Renderer::dict(const Expression& one) {
  Dict made;
  for (size_t i = 0; i + 1 < one.parts.size(); i += 2) {
    const Value key = evaluate(*one.parts[i]);
    made.set(key, evaluate(*one.parts[i + 1]));
  }
  return workspace_.dict(std::move(made));
}

Value Renderer::concat(const Expression& one) {
  TextBuilder text(workspace_);
  for (const ExpressionPtr& part : one.parts) text += to_text(workspace_, evaluate(*part));
  return workspace_.text(text.take());
}

// a < b < c is a < b and b < c.
Value Renderer::compare_chain(const Expression& one) {
  Value left = evaluate(*one.parts[0]);
  for (size_t i = 0; i < one.operators.size(); ++i) {
    Value right = evaluate(*one.parts[i + 1]);
    if (!compare(workspace_, one.operators[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Renderer::condition(const Expression& one) {
  if (truth(evaluate(*one.parts[1]))) return evaluate(*one.parts[0]);
  if (one.parts[2]) return evaluate(*one.parts[2]);
  return Value::undefined("an `if` without `else` is not true, and stands for nothing");
}

// A method of that name goes before a key; value['name'] has it the other way round.
Value Renderer::attribute(const Expression& one) {
  const Value value = evaluate(*one.parts[0]).defined();
  if (value.is_dict()) {
    const Value found = method(workspace_, value, one.name);
    if (!found.is_undefined()) return found;
  }
  return item(workspace_, value, one.name);
}

Value Renderer::sliced(const Expression& one) {
  const Value value = evaluate(*one.parts[0]);
  const auto bound = [&](size_t i) -> std::optional<int64_t> {
    if (!one.parts[i]) return {};
    const Value given = evaluate(*one.parts[i]);
    if (given.is_none()) return {};
    if (!given.is_number() || given.is_float()) throw RenderError("a bound of a slice is no integer");
    return given.integer();
  };
  const SliceBounds bounds{bound(1), bound(2), bound(3)};
  return slice(workspace_, value, bounds);
}

Arguments Renderer::arguments(const Expression& one) {
  Arguments all;
  for (size_t i = 1; i < one.parts.size(); ++i) all.positional.push_back(evaluate(*one.parts[i]));
  for (const auto& [name, value] : one.named) all.named.emplace_back(name, evaluate(*value));
  line_ = one.line;
  return all;
}

Value Renderer::call(const Expression& one, const Value* caller) {
  const Value function = evaluate(*one.parts[0]).defined();
  if (!function.is_object()) throw RenderError(std::string("a value of type '") + type_name(function) + "' cannot be called");
  Arguments given = arguments(one);
  if (caller) given.named.emplace_back("caller", *caller);
  workspace_.spend(64);
  return function.object().call(given);
}

Value Renderer::filter(const Expression& one, const Value* innermost) {
  const Deepened deepened(depth_, limits_.depth);
  Value value;
  if (!one.parts[0])
    value = *innermost;
  else
    value = innermost && one.parts[0]->kind == ExpressionKind::kFilter ? filter(*one.parts[0], innermost) : evaluate(*one.parts[0]);
  return apply_filter(workspace_, one.name, value, arguments(one));
}

}  // namespace tandem::text::jinja
