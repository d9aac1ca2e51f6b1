// SPDX-License-Identifier: Apache-2.0
#pragma once
// What operators, keys and slices mean, as in Python. Errors: RenderError for operands that do not go together, and for
// integers beyond 64 bits; as Workspace::spend.

#include <optional>
#include <string>

#include "tandem/text/jinja_value/value.h"

namespace tandem::text::jinja {

/// One of + - * / // % **.
Value binary(Workspace& workspace, const std::string& sign, const Value& left, const Value& right);
Value negative(const Value& value);

bool equal(Workspace& workspace, const Value& left, const Value& right);
/// Below, at or above 0 where left comes before, with or after right.
int order(Workspace& workspace, const Value& left, const Value& right);
bool contains(Workspace& workspace, const Value& whole, const Value& part);
/// One of == != < <= > >= in `not in`.
bool compare(Workspace& workspace, const std::string& sign, const Value& left, const Value& right);

int64_t length(const Value& value);
/// value[key]; undefined if there is none.
Value item(Workspace& workspace, const Value& value, const Value& key);

struct SliceBounds {
  std::optional<int64_t> begin, end, step;
};
Value slice(Workspace& workspace, const Value& value, const SliceBounds& bounds);

}  // namespace tandem::text::jinja
