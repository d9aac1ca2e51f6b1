// SPDX-License-Identifier: Apache-2.0
#pragma once
// `value | name(arguments)` and `value is name(arguments)`. Errors: RenderError naming a filter or test that is not known, and
// the nearest one; as Workspace::spend.

#include <map>
#include <string>

#include "tandem/text/jinja_value/value.h"

namespace tandem::text::jinja {

Value apply_filter(Workspace& workspace, const std::string& name, const Value& value, const Arguments& arguments);
bool apply_test(Workspace& workspace, const std::string& name, const Value& value, const Arguments& arguments);

using Filter = Value (*)(Workspace&, const Value&, ArgumentReader&);
/// The filters of lists, by name.
const std::map<std::string, Filter>& list_filters();

}  // namespace tandem::text::jinja
