// SPDX-License-Identifier: Apache-2.0
#pragma once
// A template as tokens, with white space cut as chat templates have it: trim_blocks and lstrip_blocks on.

#include <string>
#include <string_view>
#include <vector>

namespace tandem::text::jinja {

enum class TokenKind { kData, kPrintBegin, kPrintEnd, kBlockBegin, kBlockEnd, kName, kString, kInteger, kFloat, kOperator, kEnd };

struct Token {
  TokenKind kind;
  std::string text;  ///< of a string, what it says
  int line;          ///< from 1
};

/// The last token is kEnd. Errors: UserError naming `where` and the line.
std::vector<Token> tokenize(std::string_view source, const std::string& where);

}  // namespace tandem::text::jinja
