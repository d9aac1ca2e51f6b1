// SPDX-License-Identifier: Apache-2.0
#pragma once
// Values as text: as they are printed, as Python's repr() writes them inside of lists, and as JSON.

#include <string>

#include "tandem/text/jinja_value/value.h"

namespace tandem::text::jinja {

/// As `{{ value }}` prints it; undefined is "". Errors: as Workspace::spend.
std::string to_text(Workspace& workspace, const Value& value);

struct JsonStyle {
  int indent = -1;  ///< blanks a level; below 0 everything is on one line
  std::string item_separator = ", ", key_separator = ": ";
  bool ascii = false, sort_keys = false;
};
/// Python's json.dumps. Errors: RenderError for what JSON cannot hold; as Workspace::spend.
std::string to_json(Workspace& workspace, const Value& value, const JsonStyle& style);

/// `format % values` with %s %r %d %i %f %x %%, width and precision. Errors: RenderError for other forms or too few values.
std::string format_percent(Workspace& workspace, const std::string& format, const std::vector<Value>& values);

/// Python's repr() of a number: the shortest decimal that reads back as the same.
std::string float_text(double value);

}  // namespace tandem::text::jinja
