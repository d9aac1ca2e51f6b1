// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/jinja/template.h"

#include "tandem/base/error.h"
#include "tandem/text/jinja/renderer.h"
#include "tandem/text/jinja/statement_parser.h"
#include "tandem/text/jinja_value/method.h"

namespace tandem::text::jinja {

Template::Template(std::string_view source, std::string where, const Limits& limits)
    : where_(std::move(where)), limits_(limits), body_(std::make_shared<const Block>(parse(source, where_))) {}

std::string Template::render(const nlohmann::ordered_json& variables) const {
  Renderer renderer(limits_);
  try {
    return renderer.run(*body_, variables);
  } catch (const RefusedByTemplate& e) {
    throw UserError(where_ + ":" + std::to_string(renderer.line()), std::string("the template refuses the conversation: ") + e.what(),
                    "expected messages and variables that it takes");
  } catch (const RenderError& e) {
    throw UserError(where_ + ":" + std::to_string(renderer.line()), e.what(),
                    "expected messages and variables that the template can render");
  }
}

}  // namespace tandem::text::jinja
