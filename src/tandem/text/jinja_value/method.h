// SPDX-License-Identifier: Apache-2.0
#pragma once
// Methods of texts and dicts, and the functions every template may call.

#include <functional>
#include <map>
#include <string>

#include "tandem/text/jinja_value/value.h"

namespace tandem::text::jinja {

/// A method bound to its value; undefined if the type has none of that name. The workspace must outlive it.
Value method(Workspace& workspace, const Value& value, const std::string& name);

/// range, dict, raise_exception and strftime_now; namespaces are the renderer's.
std::map<std::string, Value> functions(Workspace& workspace);

/// A function as a value.
Value make_function(std::string name, std::function<Value(const Arguments&)> body);

/// What raise_exception() throws: the template refuses the conversation.
class RefusedByTemplate : public RenderError {
 public:
  using RenderError::RenderError;
};

/// Python's str.split(). Without a separator, at white space. `limit` below 0 is none.
Value split(Workspace& workspace, const std::string& text, const Value& separator, int64_t limit);
std::string replace(Workspace& workspace, const std::string& text, const std::string& what, const std::string& with, int64_t limit);

}  // namespace tandem::text::jinja
