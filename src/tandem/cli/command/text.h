// SPDX-License-Identifier: Apache-2.0
#pragma once
// The commands that turn one JSON line into another: tokenize, detokenize, chat, grade. Each answers a line before it reads the next.

#include <iosfwd>
#include <string>

namespace tandem::cli {

/// {"text":} -> {"ids":[]}. With `plain`, special tokens in the text are text.
/// Errors: UserError naming the line of standard input that is wrong; lines before it are answered.
void tokenize(const std::string& model, bool plain, std::istream& in, std::ostream& out);
/// {"ids":[]} -> {"text":}. Errors: as above.
void detokenize(const std::string& model, std::istream& in, std::ostream& out);
/// {"messages":[], "tools":[], "add_generation_prompt":, "variables":{}} -> {"text":}. The chat template is the model's, or that of
/// `template_file` if it is not empty. Errors: as above.
void chat(const std::string& model, const std::string& template_file, std::istream& in, std::ostream& out);
/// {"response" or "prediction":, "gold":, "response_tokens":, "choices":[], "prompt":, "messages":[]} -> {"score":, "parts":{},
/// "extracted":}. Errors: as above.
void grade(const std::string& rule, std::istream& in, std::ostream& out);

}  // namespace tandem::cli
