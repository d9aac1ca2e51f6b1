// SPDX-License-Identifier: Apache-2.0
// `tandem generate` and `tandem logprobs`: a model used alone, JSON lines in and out.
#include <CLI/App.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/base/log.h"
#include "tandem/cli/arguments.h"
#include "tandem/cli/command/command.h"
#include "tandem/cli/json_lines.h"
#include "tandem/hub/fetch.h"
#include "tandem/text/turns.h"

namespace tandem::cli {

using nlohmann::ordered_json;

namespace {

/// What input a model takes.
struct InputBounds {
  explicit InputBounds(const serve::Inference& model) : vocab_size(model.vocab_size()), context(model.max_positions()) {}

  const int64_t vocab_size, context;

  void check_ids(const std::vector<int32_t>& ids, const std::string& where) const {
    for (const int32_t id : ids)
      if (id >= vocab_size)
        throw UserError(where, join_text("token id ", id, " is out of range"), join_text("the model has ids 0 to ", vocab_size - 1));
  }
  /// `behind` tokens must fit behind the given ones.
  void check_length(size_t length, int64_t behind, const std::string& where) const {
    if (static_cast<int64_t>(length) + behind <= context) return;
    const std::string more = behind > 1 ? join_text(" and ", behind, " new ones") : "";
    throw UserError(where, join_text("has ", length, " tokens", more, ", and the model's context is ", context),
                    context > behind ? join_text("at most ", context - behind, behind > 1 ? ", or a smaller --max-new-tokens" : "")
                                     : join_text("--max-new-tokens below ", context));
  }
};

ordered_json numbers(const std::vector<float>& values) {
  ordered_json list = ordered_json::array();
  for (const float value : values) list.push_back(static_cast<double>(value));
  return list;
}

class Generate : public Command {
 public:
  void declare(CLI::App& app) override {
    add_inference(app, inference_);
    add_repeated(app, "--prompt", texts_, "Text to continue; may be repeated. They come before those of --input, and none is read from "
                 "standard input then")->type_name("TEXT");
    app.add_option("--input", input_, "File of prompts; default standard input")->type_name("FILE");
    app.add_option("--chat-template", chat_template_, "Template for messages; default that of the model")->type_name("FILE");
    add_checked(app, "--n", &options_.n, "Completions per prompt", at_least(1))->group("Sampling");
    add_described(app, options_.sampling, "Sampling");
    max_new_tokens_ = app.get_option("--max-new-tokens");
    add_repeated(app, "--stop", options_.stop, "Text that ends a completion and is cut off; may be repeated")->group("Sampling");
    app.add_flag("--logprobs", logprobs_, "Log-probability of each token");
    app.footer(
        "Reads {\"prompt\":}, {\"prompt_ids\":[]} or {\"messages\":[{\"role\":, \"content\":}]} lines, the last with the other\n"
        "fields of `tandem chat`, such as \"tools\". In a conversation of several turns an answer may come back as it was sampled:\n"
        "{\"role\": \"assistant\", \"ids\": []} with the ids of a completion. Writes, in the same order, lines of the form\n"
        "{\"prompt_ids\":[],\"completions\":[{\"text\":,\"ids\":[],\"logprobs\":[],\"finish_reason\":\"stop|length\"}]}\n"
        "Examples:\n"
        "  tandem generate --model runs/quickstart/checkpoint/latest/hf --temperature 0 --prompt 123+456=\n"
        "  echo '{\"prompt\": \"123+456=\"}' | tandem generate --model runs/quickstart/checkpoint/latest/hf --temperature 0\n"
        "  tandem generate --model DIR --input prompts.jsonl --n 4 --max-new-tokens 128 --logprobs > answers.jsonl");
  }

  void run() override {
    inference_.model = hub::local_path(inference_.model, hub::Kind::kModel, "--model");
    serve::Inference model(inference_);
    const InputBounds bounds(model);
    auto all = by_limit(read(model.tokenizer(), bounds), bounds);
    model.load();
    const double begin = now_s();
    int64_t tokens = 0, next = 0;
    std::map<int64_t, data::Group> done;  // by record, until those before are written
    for (auto& [limit, prompts] : all) {
      serve::GenerateOptions options = options_;
      options.sampling.max_new_tokens = limit;
      model.answer(std::move(prompts), options, {}, [&](const data::Group& group) {
        for (const data::Sample& sample : group.samples) tokens += static_cast<int64_t>(sample.ids.size());
        done.emplace(group.prompt.row, group);
        for (auto it = done.find(next); it != done.end(); it = done.find(++next)) {
          write(it->second);
          done.erase(it);
        }
      });
    }
    std::fprintf(stderr, "%.1f tokens/s\n", static_cast<double>(tokens) / std::max(1e-9, now_s() - begin));
  }

 private:
  // Prompts by how many tokens may follow them. A length that the user asked for must fit. One that nobody asked for gives way to a
  // short context, for the prompts that need it alone. A call of Inference has one limit, so the longest goes first.
  using ByLimit = std::map<int64_t, std::vector<data::Prompt>, std::greater<>>;
  ByLimit by_limit(std::vector<data::Prompt> prompts, const InputBounds& bounds) const {
    const int64_t wanted = options_.sampling.max_new_tokens;
    ByLimit all;
    for (data::Prompt& prompt : prompts) {
      int64_t limit = wanted;
      if (max_new_tokens_->count() > 0)
        bounds.check_length(prompt.ids.size(), wanted, prompt.data_source);
      else
        limit = std::min(wanted, bounds.context - static_cast<int64_t>(prompt.ids.size()));
      all[limit].push_back(std::move(prompt));
    }
    return all;
  }

  std::vector<data::Prompt> read(const text::Tokenizer* tokenizer, const InputBounds& bounds) const {
    std::optional<text::ChatTemplate> chat;
    std::vector<data::Prompt> prompts;
    const auto add = [&](const Object& object, const std::string& where) {
      data::Prompt prompt;
      prompt.row = static_cast<int64_t>(prompts.size());
      prompt.data_source = where;
      if (object.contains("prompt_ids")) {
        prompt.ids = ids_field(object, "prompt_ids", where);
      } else {
        const char* name = object.contains("messages") ? "messages" : "prompt";
        if (!tokenizer)
          throw UserError(where, join_text("field `", name, "` is text, and ", inference_.model, " has no tokenizer"),
                          "expected `prompt_ids`");
        if (object.contains("messages")) {
          const auto conversation = text::Conversation::from_json(object, where);
          if (!chat) chat = text::ChatTemplate::load(inference_.model, chat_template_);
          prompt.ids = text::encode_conversation(*tokenizer, *chat, conversation, where).ids;
        } else {
          prompt.ids = tokenizer->encode(text_field(object, "prompt", where));
        }
      }
      if (prompt.ids.empty()) throw UserError(where, "the prompt is empty", "expected at least one token");
      bounds.check_ids(prompt.ids, where);
      bounds.check_length(prompt.ids.size(), 1, where);
      prompts.push_back(std::move(prompt));
    };
    for (size_t i = 0; i < texts_.size(); ++i) {
      Object object;
      object["prompt"] = texts_[i];
      add(object, texts_.size() > 1 ? join_text("--prompt ", i + 1) : "--prompt");
    }
    if (!texts_.empty() && input_.empty()) return prompts;
    InputFile input(input_);
    each_object(input.stream(), input.name(), add);
    if (prompts.empty()) log::warning(input.name(), " has no prompts (--prompt TEXT, or lines of JSON as `tandem generate --help` shows)");
    return prompts;
  }

  void write(const data::Group& group) const {
    ordered_json completions = ordered_json::array();
    for (const data::Sample& sample : group.samples) {
      ordered_json completion = {{"text", sample.text}, {"ids", sample.ids}};
      if (logprobs_) completion["logprobs"] = numbers(sample.logprobs);
      completion["finish_reason"] = sample.finish == data::FinishReason::kStop ? "stop" : "length";
      completions.push_back(std::move(completion));
    }
    write_line(std::cout, {{"prompt_ids", group.prompt.ids}, {"completions", std::move(completions)}});
  }

  serve::InferenceOptions inference_;
  serve::GenerateOptions options_;
  std::vector<std::string> texts_;
  std::string input_, chat_template_;
  bool logprobs_ = false;
  const CLI::Option* max_new_tokens_ = nullptr;  ///< of the parser, which outlives run()
};

class Logprobs : public Command {
 public:
  void declare(CLI::App& app) override {
    add_model(app, inference_);
    add_checked(app, "--seed", &inference_.seed, "Known wherever a model runs; nothing is drawn here", at_least(0))
        ->group("Computing");
    app.add_option("--input", input_, "File of token ids; default standard input")->type_name("FILE");
    add_checked(app, "--temperature", &temperature_, "Divides the logits; 0 counts as 1", at_least(0));
    app.footer(
        "Reads {\"ids\":[]} lines, writes {\"logprobs\":[]} lines: log p(ids[i] given ids[0..i-1]) for i >= 1.\n"
        "Example:\n  echo '{\"ids\": [5, 6, 7]}' | tandem logprobs --model DIR");
  }

  void run() override {
    inference_.model = hub::local_path(inference_.model, hub::Kind::kModel, "--model");
    serve::Inference model(inference_);
    const InputBounds bounds(model);
    model.load();  // what is wrong with the model is no fault of a line
    InputFile input(input_);
    each_object(input.stream(), input.name(), [&](const Object& object, const std::string& where) {
      const std::vector<int32_t> ids = ids_field(object, "ids", where);
      bounds.check_ids(ids, where);
      bounds.check_length(ids.size(), 0, where);
      std::vector<float> logprobs;
      if (ids.size() > 1) logprobs = model.logprobs(ids, temperature_);
      write_line(std::cout, {{"logprobs", numbers(logprobs)}});
    });
  }

 private:
  serve::InferenceOptions inference_;
  std::string input_;
  double temperature_ = 1.0;
};

}  // namespace

std::unique_ptr<Command> generate_command() { return std::make_unique<Generate>(); }
std::unique_ptr<Command> logprobs_command() { return std::make_unique<Logprobs>(); }

}  // namespace tandem::cli
