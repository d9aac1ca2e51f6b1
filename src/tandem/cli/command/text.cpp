// SPDX-License-Identifier: Apache-2.0
#include "tandem/cli/command/text.h"

#include <CLI/App.hpp>
#include <algorithm>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tandem/base/error.h"
#include "tandem/base/input/exact_json.h"
#include "tandem/base/strings.h"
#include "tandem/cli/command/command.h"
#include "tandem/cli/json_lines.h"
#include "tandem/hub/fetch.h"
#include "tandem/reward/graders.h"
#include "tandem/reward/rule.h"
#include "tandem/serve/reward_model.h"
#include "tandem/text/chat.h"
#include "tandem/text/tokenizer.h"

namespace tandem::cli {

using nlohmann::ordered_json;

namespace {

// Each line is answered before the next is read.
void each_line(std::istream& in, std::ostream& out, const std::function<ordered_json(const Object&, const std::string&)>& answer) {
  each_object(in, "stdin", [&](const Object& object, const std::string& where) { write_line(out, answer(object, where)); });
}

std::string gold_field(const Object& object, bool is_needed, const std::string& where) {
  if (!object.contains("gold") && !is_needed) return "";
  const Object& gold = field(object, "gold", where);
  if (gold.is_string()) return gold.get<std::string>();
  if (gold.is_number() || gold.is_boolean() || is_long_number(gold)) return exact_text(gold);
  throw UserError(where, "field `gold` is " + exact_text(gold).substr(0, 40), "expected a text or a number");
}

std::vector<std::string> choices_field(const Object& object, const std::string& where) {
  if (!object.contains("choices")) return {};
  const Object& given = object["choices"];
  const bool right = given.is_array() && given.size() <= 10 &&
                     std::all_of(given.begin(), given.end(), [](const Object& choice) { return choice.is_string(); });
  if (!right)
    throw UserError(where, "field `choices` is " + exact_text(given).substr(0, 40), "expected at most 10 texts, those of A, B, ...");
  return given.get<std::vector<std::string>>();
}

// What the prompt was rendered from, if the line has messages, in `messages` or in place of a prompt's text.
std::string messages_field(const Object& object, const std::string& where) {
  const char* name = object.contains("messages") ? "messages" : "prompt";
  if (!object.contains(name) || !object[name].is_array()) return "";
  Object whole = {{"messages", object[name]}};
  for (const Object& message : object[name])
    if (message.is_object()) text::require_text(message, where);
  if (object.contains("tools")) whole["tools"] = object["tools"];
  return exact_text(whole);
}

}  // namespace

void tokenize(const std::string& model, bool plain, std::istream& in, std::ostream& out) {
  const auto tokenizer = text::Tokenizer::load(model);
  each_line(in, out, [&](const Object& object, const std::string& where) {
    return ordered_json{
        {"ids", tokenizer.encode(text_field(object, "text", where), plain ? text::Special::kPlain : text::Special::kRecognise)}};
  });
}

void detokenize(const std::string& model, std::istream& in, std::ostream& out) {
  const auto tokenizer = text::Tokenizer::load(model);
  each_line(in, out, [&](const Object& object, const std::string& where) {
    return ordered_json{{"text", tokenizer.decode(ids_field(object, "ids", where))}};
  });
}

void chat(const std::string& model, const std::string& template_file, std::istream& in, std::ostream& out) {
  const auto rendered_by = text::ChatTemplate::load(model, template_file);
  each_line(in, out, [&](const Object& object, const std::string& where) {
    const auto conversation = text::Conversation::from_json(object, where);
    for (const Object& message : conversation.messages) text::require_text(message, where);
    return ordered_json{{"text", rendered_by.render(conversation)}};
  });
}

void grade(const std::string& spec, std::istream& in, std::ostream& out) {
  serve::RewardModels models(serve::kAlone);
  const auto rule = reward::make_rule(spec, {}, models.maker());
  each_line(in, out, [&](const Object& object, const std::string& where) {
    reward::Answer answer;
    const bool has_prediction = !object.contains("response") && object.contains("prediction");
    answer.response = text_field(object, has_prediction ? "prediction" : "response", where);
    answer.gold = gold_field(object, rule->needs_gold(), where);
    answer.choices = choices_field(object, where);
    answer.columns = exact_text(object);
    if (object.contains("prompt") && object["prompt"].is_string()) answer.prompt = object["prompt"].get<std::string>();
    answer.messages = messages_field(object, where);
    // Without a count, words stand for tokens, so that the rules of length have something to go by.
    answer.response_tokens = object.contains("response_tokens") && object["response_tokens"].is_number_integer()
                                 ? object["response_tokens"].get<int64_t>()
                                 : static_cast<int64_t>(reward::words_as_items(answer.response).size());
    const reward::Score score = rule->score(answer);
    ordered_json parts = ordered_json::object();
    for (const auto& [name, value] : score.parts) parts[name] = value;
    return ordered_json{{"score", score.score}, {"parts", parts}, {"extracted", score.extracted}};
  });
}

namespace {

std::string local_model(const std::string& model) { return hub::local_path(model, hub::Kind::kModel, "--model"); }

class Tokenize : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_option("--model", model_, "Hugging Face directory of the model or tokenizer")->required()->type_name("DIR");
    app.add_flag("--plain", plain_, "Special tokens in the text are text");
    app.footer(
        "Reads {\"text\":} lines, writes {\"ids\":[]} lines.\n"
        "Example:\n  echo '{\"text\": \"Hello\"}' | tandem tokenize --model DIR");
  }
  void run() override { tokenize(local_model(model_), plain_, std::cin, std::cout); }

 private:
  std::string model_;
  bool plain_ = false;
};

class Detokenize : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_option("--model", model_, "Hugging Face directory of the model or tokenizer")->required()->type_name("DIR");
    app.footer(
        "Reads {\"ids\":[]} lines, writes {\"text\":} lines.\n"
        "Example:\n  echo '{\"ids\": [9707]}' | tandem detokenize --model DIR");
  }
  void run() override { detokenize(local_model(model_), std::cin, std::cout); }

 private:
  std::string model_;
};

class Chat : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_option("--model", model_, "Hugging Face directory, whose chat template and special tokens are taken")
        ->required()
        ->type_name("DIR");
    app.add_option("--template", template_, "A chat template (Jinja) instead of the model's")->type_name("FILE");
    app.footer(
        "Reads {\"messages\":[], \"tools\":[], \"add_generation_prompt\":, \"variables\":{}} lines, of which only messages must be there,\n"
        "and writes {\"text\":} lines. Variables are more names for the template, such as enable_thinking.\n"
        "Example:\n  echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}' | tandem chat --model DIR");
  }
  void run() override { chat(local_model(model_), template_, std::cin, std::cout); }

 private:
  std::string model_, template_;
};

class Grade : public Command {
 public:
  void declare(CLI::App& app) override {
    const std::string names = joined(reward::rule_names(), ", ");
    app.add_option("--rule", rule_, "Rule, with its options in parentheses: gsm8k(method=flexible)")->required()->type_name("RULE");
    app.footer("Reads {\"response\":, \"gold\":} lines, writes {\"score\":, \"parts\":{}, \"extracted\":} lines. For the rule\n"
               "choice a line may carry \"choices\": the texts of A, B, ...; then gold may be a letter, one of the texts, or its\n"
               "index from 0. The rule model(model=DIR) reads \"prompt\", a text or messages, or \"messages\";\n"
               "python(python=FILE.py:FUNCTION) gets further columns of the line by name, and one line a\n"
               "call, where a run calls it with the answers of a group (docs/rewards.md).\nRules: " + names +
               "\nExample:\n  echo '{\"response\": \"so 5\", \"gold\": \"5\"}' | tandem grade --rule number");
  }
  void run() override { grade(rule_, std::cin, std::cout); }

 private:
  std::string rule_;
};

}  // namespace

std::unique_ptr<Command> tokenize_command() { return std::make_unique<Tokenize>(); }
std::unique_ptr<Command> detokenize_command() { return std::make_unique<Detokenize>(); }
std::unique_ptr<Command> chat_command() { return std::make_unique<Chat>(); }
std::unique_ptr<Command> grade_command() { return std::make_unique<Grade>(); }

}  // namespace tandem::cli
