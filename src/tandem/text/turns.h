// SPDX-License-Identifier: Apache-2.0
#pragma once
// A conversation of several turns as token ids. Answers of the model stand in it as they were sampled. Their text encoded anew may
// be other tokens, and training needs the log-probabilities of those that were drawn.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tandem/text/chat.h"

namespace tandem::text {

struct EncodedConversation {
  std::string text;          ///< as rendered; where an answer came as ids, what all the ids say
  std::vector<int32_t> ids;
};

/// What the model is to continue. An assistant message may say `ids`, the tokens as sampled, with or without the one that ended
/// them. They go in as they are, behind what the template wrote before that answer. Between them and the next answer stands what
/// the template writes there. A conversation without such a message is its rendered text, encoded.
/// Errors: UserError naming `where` for ids that are none, and for a template that does not write an answer's content once, as it is.
EncodedConversation encode_conversation(const Tokenizer& tokenizer, const ChatTemplate& chat, const Conversation& conversation,
                                        const std::string& where);

/// The same with sampled answers as text, for whoever reads the conversation with another tokenizer.
/// To be called after encode_conversation, which checks the ids.
Conversation as_text(const Tokenizer& tokenizer, Conversation conversation);

/// The first of `ends` that the template writes behind an answer to the conversation: what ends a turn of the model.
/// nullopt if it writes none of them, or not the answer's content once, as it is.
std::optional<int32_t> end_of_turn(const Tokenizer& tokenizer, const ChatTemplate& chat, Conversation conversation,
                                   std::span<const int32_t> ends);

}  // namespace tandem::text
