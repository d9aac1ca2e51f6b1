// SPDX-License-Identifier: Apache-2.0
#pragma once
// The part of Jinja that chat templates are written in, rendered as Hugging Face does. Blank lines around blocks are cut
// (trim_blocks, lstrip_blocks); tojson writes no HTML escapes. There are break and continue, generation blocks, raise_exception()
// and strftime_now(). A template can change nothing but namespaces. docs/design/chat_templates.md says why it is ours.

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tandem/text/jinja/syntax.h"

namespace tandem::text::jinja {

/// What a rendering may take, whoever wrote the template.
struct Limits {
  int64_t work = int64_t{1} << 32;          ///< about a byte touched each; the default is some seconds
  int64_t output_bytes = int64_t{1} << 28;
  int depth = 500;                          ///< of statements, expressions and macros within each other
};

/// Ownership  keeps what it needs; a value, copies share the tree.
/// Threads    const members from any thread.
/// Errors     UserError naming `where`, the line and the construct. The constructor throws for what it does not know; render() for
///            what it reaches, for a raise_exception() of the template, and for a limit.
class Template {
 public:
  Template(std::string_view source, std::string where, const Limits& limits = {});
  /// `variables` is an object: the names a template may use. The order of keys is kept.
  std::string render(const nlohmann::ordered_json& variables) const;

 private:
  std::string where_;
  Limits limits_;
  std::shared_ptr<const Block> body_;
};

}  // namespace tandem::text::jinja
