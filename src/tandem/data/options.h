// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where prompts come from.

#include <cstdint>
#include <string>
#include <vector>

#include "tandem/base/options.h"

namespace tandem::data {

struct Options {
  std::string train = "synthetic";
  std::vector<std::string> eval;
  std::vector<std::string> mix;
  std::string prompt_column = "question";
  std::string answer_column = "answer";
  std::string prompt_template = "{prompt}";
  std::string answer_after;
  std::vector<std::string> columns = {"*"};
  std::string source_column;
  std::string tools_column;
  bool as_chat = false;
  std::string system_message;
  std::string chat_template;
  int64_t max_prompt_tokens = 0;
  std::string too_long = "error";
  std::string curriculum_column;
  std::string curriculum = "ascending";
  int64_t max_rows = 0;
  int64_t eval_max_rows = 0;
  bool shuffle = true;
  int64_t seed = 0;
  int64_t digits = 3;
  int64_t min_digits = 0;
  bool reversed = false;
  int64_t synthetic_rows = 100000;
  int64_t synthetic_eval_rows = 500;
  double held_out_fraction = 0.1;
};

inline void describe(OptionVisitor& field, Options& o) {
  field("train", o.train,
        "Training prompts: a .jsonl, .json or .parquet file, or OWNER/NAME[/FOLDER][@REVISION] of a data set on a hub, as model.path; "
        "hf:OWNER/NAME/FILE for one of its files. Made here: `word_problems` of one step, and `synthetic` for bare additions.");
  field("eval", o.eval,
        "Held-out prompts: as train; empty for none. Several sets have names, as in {gsm8k: a.jsonl, math: b.jsonl} or "
        "[gsm8k=a.jsonl, math=b.jsonl], and metrics of their own, such as eval/gsm8k/accuracy.");
  field("mix", o.mix, "Several training sets with weights, such as [a.jsonl=2, b.parquet=1]; replaces `train`.");
  field("prompt_column", o.prompt_column,
        "Field of a record that holds the question, or messages for the chat template; dots go into it, as in extra_info.question.");
  field("answer_column", o.answer_column,
        "Field that holds the right answer, such as reward_model.ground_truth; empty takes the last message, of the assistant; none: "
        "rows have no answer, for rewards that need none.");
  field("prompt_template", o.prompt_template,
        "Text the model sees; each {prompt} in it becomes the question, other braces are text. Messages are left as they are.");
  field("answer_after", o.answer_after,
        "The answer is what follows the last of these texts, such as `####` for GSM8K; empty takes the whole field.");
  field("columns", o.columns,
        "Fields that rewards see beside that of the question, dots go into them; [*]: all, but columns of bytes of a Parquet file, which "
        "must be named, and those of types without a form in JSON. Nothing is kept for rewards that read none.");
  field("source_column", o.source_column,
        "Field that names the data set of a record, such as data_source; empty takes the name of the file.");
  field("tools_column", o.tools_column, "Field with the tools that the chat template tells the model of; empty for none.");
  field("as_chat", o.as_chat, "A question that is a text becomes the message of a user.");
  field("system_message", o.system_message, "as_chat: message of the system before it; empty for none.");
  field("chat_template", o.chat_template, "File of the chat template (Jinja) of messages; empty takes that of the model.");
  field("max_prompt_tokens", o.max_prompt_tokens, "Longest prompt allowed; 0 for any.", at_least(0));
  field("too_long", o.too_long, "What happens to longer prompts: error, or drop, which says how many.", one_of({"error", "drop"}));
  field("curriculum_column", o.curriculum_column,
        "Field with a number that orders the rows of an epoch; `shuffle` orders equal ones.");
  field("curriculum", o.curriculum, "From the least number up, or from the greatest down.", one_of({"ascending", "descending"}));
  field("max_rows", o.max_rows, "Training rows to use from the start of the file; 0 for all.", at_least(0));
  field("eval_max_rows", o.eval_max_rows, "Held-out rows to use of each set; 0 for all.", at_least(0));
  field("shuffle", o.shuffle, "Visit the rows in a new order each epoch.");
  field("seed", o.seed, "Seed of the order and of problems that are made here.");
  field("digits", o.digits, "Synthetic: digits of an operand.", between(1, 18));
  field("min_digits", o.min_digits, "Synthetic: operands have from this many digits up to `digits`; 0 for exactly `digits`.",
        between(0, 18));
  field("reversed", o.reversed, "Synthetic: write every number with its last digit first.");
  field("synthetic_rows", o.synthetic_rows, "Problems that are made here: how many to train on.", at_least(1));
  field("synthetic_eval_rows", o.synthetic_eval_rows, "Problems that are made here: how many are held out.", at_least(1));
  field("held_out_fraction", o.held_out_fraction, "Problems that are made here: share of all pairs of numbers kept for evaluation.",
        between(0.001, 0.9));
}

}  // namespace tandem::data
