// SPDX-License-Identifier: Apache-2.0
#pragma once
// A conversation of several turns as token ids. Answers that the model gave stand in it as they were sampled: their text encoded anew
// may be other tokens than those that were drawn, whose log-probabilities training needs.

#include <string>
#include <vector>

#include "tandem/text/chat.h"

namespace tandem::text {

struct EncodedConversation {
  std::string text;          ///< as rendered; where an answer came as ids, what all the ids say
  std::vector<int32_t> ids;
};

/// What the model is to continue. An assistant message may say `ids`, the tokens as sampled, with or without the one that ended
/// them: they go in as they are, behind the head that the template gave them then. Between them and the next answer stands what the
/// template writes there. A conversation without such a message is its rendered text, encoded.
/// Errors: UserError naming `where` for ids that are none, and for a template that does not write an answer's content once, as it is.
EncodedConversation encode_conversation(const Tokenizer& tokenizer, const ChatTemplate& chat, const Conversation& conversation,
                                        const std::string& where);

/// The same with sampled answers as text, for whoever reads the conversation with another tokenizer.
/// To be called after encode_conversation, which checks the ids.
Conversation as_text(const Tokenizer& tokenizer, Conversation conversation);

}  // namespace tandem::text
