// SPDX-License-Identifier: Apache-2.0
#include "tandem/serve/talk.h"

#include <algorithm>

#include "tandem/base/check.h"
#include "tandem/generate/response_text.h"
#include "tandem/text/stream.h"
#include "tandem/text/turns.h"

namespace tandem::serve {
namespace {

// The text of an answer as far as no stop text can take it back.
class GrowingText {
 public:
  GrowingText(const text::Tokenizer& tokenizer, const std::vector<std::string>& stops, const std::function<void(std::string_view)>& show)
      : stream_(tokenizer, true), stops_(stops), show_(show) {
    for (const std::string& stop : stops) longest_ = std::max(longest_, stop.size());
  }

  /// False once a stop text has ended it.
  bool take(int32_t token) {
    add(stream_.push(token));
    if (!is_ended_) show_until(text_.size() < longest_ ? 0 : text_.size() - (longest_ > 0 ? longest_ - 1 : 0));
    return !is_ended_;
  }
  std::string finish() {
    if (!is_ended_) add(stream_.finish());
    show_until(text_.size());
    return text_;
  }

 private:
  void add(const std::string& part) {
    text_ += part;
    const auto found = stops_.feed(part);
    if (!found) return;
    text_.resize(found->cut);
    is_ended_ = true;
  }
  void show_until(size_t end) {
    while (end > shown_ && end < text_.size() && (static_cast<unsigned char>(text_[end]) & 0xC0) == 0x80) --end;  // within a character
    if (end <= shown_) return;
    show_(std::string_view(text_).substr(shown_, end - shown_));
    shown_ = end;
  }

  text::StreamingDetokenizer stream_;
  text::StopMatcher stops_;
  const std::function<void(std::string_view)>& show_;
  std::string text_;
  size_t longest_ = 0, shown_ = 0;
  bool is_ended_ = false;
};

}  // namespace

Talk::Talk(const TalkOptions& options)
    : options_(options), model_(options.inference), template_(text::ChatTemplate::load(options.inference.model, options.chat_template)) {
  if (!model_.tokenizer()) throw UserError(options.inference.model, "has no tokenizer", "a directory with tokenizer.json or vocab.json");
  GenerateOptions& how = options_.generate;
  how.stop = generate::stop_texts(std::move(how.stop), how.sampling, model::read_config(options.inference.model), model_.tokenizer());
  model_.load();  // now, and not behind the first question
  if (options.system.empty()) return;
  messages_.push_back({{"role", "system"}, {"content", options.system}});
  num_fixed_ = 1;
}

std::vector<int32_t> Talk::encoded() const {
  text::Conversation conversation;
  conversation.messages = messages_;
  return text::encode_conversation(*model_.tokenizer(), template_, conversation, "the conversation").ids;
}

// Forgets the oldest turns until there is room for the longest answer, or for half the context. Returns how many messages went.
int64_t Talk::make_room(std::vector<int32_t>& ids) {
  const int64_t context = model_.context_tokens();
  const int64_t wanted = std::min(options_.generate.sampling.max_new_tokens, std::max<int64_t>(1, context / 2));
  int64_t num_forgotten = 0;
  while (std::ssize(ids) + wanted > context && messages_.size() > num_fixed_ + 2) {
    messages_.erase(num_fixed_);  // a question and its answer
    messages_.erase(num_fixed_);
    num_forgotten += 2;
    ids = encoded();
  }
  if (std::ssize(ids) >= context)
    throw UserError("the message", join_text("has ", ids.size(), " tokens with its template, and the model's context is ", context),
                    "a shorter one");
  return num_forgotten;
}

Talk::Answer Talk::say(const std::string& message, const std::function<void(std::string_view)>& show, const StopRequested& stop) {
  const nlohmann::ordered_json before = messages_;
  messages_.push_back({{"role", "user"}, {"content", message}});
  try {
    Answer answer;
    std::vector<int32_t> ids = encoded();
    answer.num_forgotten = make_room(ids);
    GenerateOptions how = options_.generate;
    how.sampling.max_new_tokens = std::min(how.sampling.max_new_tokens, model_.context_tokens() - std::ssize(ids));
    GrowingText text(*model_.tokenizer(), how.stop, show);
    const auto goes_on = [&](int32_t token) { return text.take(token) && !(stop && stop()); };
    const data::Sample sample = model_.answer_one(std::move(ids), how, goes_on);
    answer.text = text.finish();
    answer.is_cut = sample.finish == data::FinishReason::kLength;
    messages_.push_back({{"role", "assistant"}, {"content", answer.text}});
    return answer;
  } catch (const UserError&) {
    messages_ = before;
    throw;
  }
}

}  // namespace tandem::serve
