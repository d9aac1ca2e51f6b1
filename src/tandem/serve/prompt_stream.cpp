// SPDX-License-Identifier: Apache-2.0
#include "tandem/serve/prompt_stream.h"

#include <algorithm>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/input/exact_json.h"
#include "tandem/base/log.h"

namespace tandem::serve {
namespace {

std::vector<double> weights_of(const data::Options& options, data::Split split) {
  std::vector<double> weights(split == data::Split::kHeldOut ? std::max<size_t>(1, options.eval.size()) : 0, 1.0);
  if (split == data::Split::kHeldOut) return weights;
  for (const data::MixPart& part : data::mix_of(options)) weights.push_back(part.weight);
  return weights;
}

}  // namespace

data::Options data_for(const reward::Rule& rule, const data::Options& options, bool has_episodes) {
  if (options.answer_column == data::kNoAnswer && rule.needs_gold())
    throw UserError("data.answer_column", join_text("is none, and the reward, ", rule.name(), ", compares with an answer"),
                    "the field that holds it, or another reward");
  data::Options kept = options;
  if (!rule.reads_columns() && !has_episodes) kept.columns.clear();
  return kept;
}

PromptStream::PromptStream(const data::Options& options, data::Split split, PromptText text)
    : options_(options), text_(std::move(text)), mix_(weights_of(options, split)) {
  if (split == data::Split::kHeldOut) {
    for (const data::EvalSet& set : data::eval_sets(options)) parts_.push_back(open(set.name, data::open_source(set.path, options, split)));
  } else {
    for (const data::MixPart& part : data::mix_of(options)) parts_.push_back(open("", data::open_source(part.path, options, split)));
  }
  for (const Part& part : parts_) size_ += part.size();
}

PromptStream::Part PromptStream::open(const std::string& name, std::unique_ptr<data::PromptSource> source) const {
  std::vector<int64_t> rows;
  if (options_.max_prompt_tokens > 0) rows = short_enough(*source);
  const bool sorted = !options_.curriculum_column.empty();
  if (sorted) sort_by_rank(*source, rows);
  const int64_t size = rows.empty() ? source->size() : std::ssize(rows);
  const data::DataOrder order(static_cast<uint64_t>(options_.seed), size, options_.shuffle && !sorted);
  return {name, std::move(source), std::move(rows), order};
}

std::vector<int64_t> PromptStream::short_enough(const data::PromptSource& source) const {
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < source.size(); ++row) {
    const int64_t tokens = std::ssize(tokenized(source, row).ids);
    if (tokens <= options_.max_prompt_tokens)
      rows.push_back(row);
    else if (options_.too_long == "error")
      throw UserError(source.where(row), join_text("the prompt has ", tokens, " tokens"),
                      join_text("at most data.max_prompt_tokens, ", options_.max_prompt_tokens, ", or data.too_long: drop"));
  }
  if (rows.empty()) throw UserError(source.name(), "has no prompt that is short enough", "a larger data.max_prompt_tokens");
  if (const int64_t dropped = source.size() - std::ssize(rows); dropped > 0)
    log::warning(source.name(), ": dropped ", dropped, " of ", source.size(), " prompts longer than ", options_.max_prompt_tokens,
                 " tokens");
  return rows;
}

// Equal ranks keep the order that the seed gives them, or that of the file.
void PromptStream::sort_by_rank(const data::PromptSource& source, std::vector<int64_t>& rows) const {
  std::vector<std::pair<double, int64_t>> ranked;
  const int64_t size = rows.empty() ? source.size() : std::ssize(rows);
  const data::DataOrder order(static_cast<uint64_t>(options_.seed), size, options_.shuffle);
  for (int64_t i = 0; i < size; ++i) {
    const int64_t row = rows.empty() ? order.row(i) : rows[static_cast<size_t>(order.row(i))];
    ranked.emplace_back(options_.curriculum == "descending" ? -source.at(row).rank : source.at(row).rank, row);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  rows.clear();
  for (const auto& [rank, row] : ranked) rows.push_back(row);
}

data::Prompt PromptStream::at_position(int64_t position) const {
  const data::MixOrder::Draw draw = mix_.at(position);
  const Part& part = parts_[draw.part];
  return prompt(part, part.order.row(draw.position));
}

// The part that has a row of all parts, and which of its own it is.
std::pair<const PromptStream::Part*, int64_t> PromptStream::part_of(int64_t row) const {
  for (const Part& part : parts_) {
    if (row < part.size()) return {&part, row};
    row -= part.size();
  }
  TANDEM_CHECK(false, "row ", row, " behind the last");
}

data::Prompt PromptStream::at_row(int64_t row) const {
  const auto [in, index] = part_of(row);
  data::Prompt found = prompt(*in, index);
  for (const Part* part = parts_.data(); part != in; ++part) found.row += part->source->size();
  return found;
}

std::string PromptStream::question(int64_t row) const {
  const auto [in, index] = part_of(row);
  return in->source->question(in->row(index));
}

std::vector<PromptStream::Set> PromptStream::sets() const {
  std::vector<Set> sets;
  for (const Part& part : parts_) sets.push_back({part.name, part.size()});
  return sets;
}

std::string PromptStream::where(int64_t position) const {
  const data::MixOrder::Draw draw = mix_.at(position);
  const Part& part = parts_[draw.part];
  return part.source->where(part.row(part.order.row(draw.position)));
}

data::Prompt PromptStream::prompt(const Part& part, int64_t index) const { return tokenized(*part.source, part.row(index)); }

data::Prompt PromptStream::tokenized(const data::PromptSource& source, int64_t row) const {
  const std::string where = source.where(row);
  data::Prompt prompt = source.at(row);
  if (!prompt.messages.empty()) {
    const text::ChatTemplate& chat_template = chat();
    try {
      const auto conversation = text::Conversation::from_json(parse_exact(prompt.messages).value, where);
      text::EncodedConversation encoded = text::encode_conversation(text_.tokenizer, chat_template, conversation, where);
      prompt.text = std::move(encoded.text);
      prompt.ids = std::move(encoded.ids);
      const text::Conversation texts = text::as_text(text_.tokenizer, conversation);
      if (texts.messages != conversation.messages)
        prompt.messages = exact_text({{"messages", texts.messages}, {"tools", texts.tools}});
    } catch (const UserError& e) {
      throw UserError(where, e.what(), "messages that the chat template takes");
    }
  } else {
    try {
      prompt.ids = text_.tokenizer.encode(prompt.text);
    } catch (const UserError& e) {
      throw e.seen_from(where);
    }
  }
  if (prompt.ids.empty()) throw UserError(where, "the prompt has no token", "a prompt with some text");
  return prompt;
}

const text::ChatTemplate& PromptStream::chat() const {
  if (!chat_) chat_ = text::ChatTemplate::load(text_.model, options_.chat_template);
  return *chat_;
}

// A model may list several ends, of which one ends its turns: Llama 3 lists <|end_of_text|> before <|eot_id|>.
std::optional<int32_t> PromptStream::end_of_answer(const data::Prompt& prompt, std::span<const int32_t> ends) const {
  if (ends.empty()) return std::nullopt;
  if (ends.size() > 1 && !prompt.messages.empty()) {
    auto conversation = text::Conversation::from_json(parse_exact(prompt.messages).value, "messages");
    if (const auto end = text::end_of_turn(text_.tokenizer, chat(), std::move(conversation), ends)) return end;
  }
  const auto eos = text_.tokenizer.eos_id();
  return eos && std::ranges::find(ends, *eos) != ends.end() ? *eos : ends.front();
}

std::vector<int32_t> PromptStream::answer_ids(const data::Prompt& prompt, std::span<const int32_t> ends) const {
  std::vector<int32_t> ids = text_.tokenizer.encode_part(prompt.answer);
  if (const auto end = end_of_answer(prompt, ends)) ids.push_back(*end);
  return ids;
}

int64_t PromptStream::longest_prompt() const {
  if (longest_prompt_ > 0) return longest_prompt_;
  for (const Part& part : parts_)
    for (int64_t index = 0; index < part.size(); ++index) {
      const data::Prompt one = prompt(part, index);
      if (std::ssize(one.ids) > longest_prompt_)
        longest_prompt_ = std::ssize(one.ids), longest_place_ = part.source->where(one.row);
    }
  return longest_prompt_;
}

void PromptStream::require_context(int64_t new_tokens, const char* option, int64_t context) const {
  if (longest_prompt() + new_tokens <= context) return;
  throw UserError(longest_place_,
                  join_text("a prompt of ", longest_prompt_, " tokens and ", new_tokens, " new ones (", option, ")"),
                  join_text("at most the model's context of ", context, ": a smaller ", option, " or shorter prompts"));
}

}  // namespace tandem::serve
