// SPDX-License-Identifier: Apache-2.0
#pragma once
// A conversation with a model, turn by turn: what `tandem talk` calls.

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/base/error.h"
#include "tandem/serve/inference.h"
#include "tandem/text/chat.h"

namespace tandem::serve {

struct TalkOptions {
  InferenceOptions inference;
  GenerateOptions generate;   ///< max_new_tokens gives way where the context is shorter; one completion whatever `n` says
  std::string chat_template;  ///< a file in place of the model's; "" for that
  std::string system;         ///< message of the system before all others; "" for none
};

/// Ownership  has the model, its engine, and what was said.
/// Threads    one.
/// Errors     UserError for a directory that cannot be used, or that has no tokenizer or no chat template.
class Talk {
 public:
  explicit Talk(const TalkOptions& options);

  struct Answer {
    std::string text;
    bool is_cut = false;        ///< it has as many tokens as it may have
    int64_t num_forgotten = 0;  ///< earlier messages that had to go, for the context is full
  };
  /// Answers a message of the user, who said the earlier ones, too. `show` gets the answer in parts as it grows, each of whole characters.
  /// `stop` is asked at each token; what is there by then is the answer.
  /// Errors: UserError for a message that does not fit into the context, or that the template refuses. It then counts as not said.
  Answer say(const std::string& message, const std::function<void(std::string_view)>& show, const StopRequested& stop);

 private:
  std::vector<int32_t> encoded() const;
  int64_t make_room(std::vector<int32_t>& ids);

  TalkOptions options_;
  Inference model_;
  text::ChatTemplate template_;
  nlohmann::ordered_json messages_ = nlohmann::ordered_json::array();
  size_t num_fixed_ = 0;  // messages at the begin that stay: that of the system
};

}  // namespace tandem::serve
