// SPDX-License-Identifier: Apache-2.0
#pragma once
// The text of a template to its tree.

#include <string>
#include <string_view>

#include "tandem/text/jinja/syntax.h"

namespace tandem::text::jinja {

/// Errors: UserError naming `where`, the line and the construct that is wrong or not known.
Block parse(std::string_view source, const std::string& where);

}  // namespace tandem::text::jinja
