// SPDX-License-Identifier: Apache-2.0
#pragma once
// Published grading rules as pure functions. They differ on purpose: a grader that follows one reference fails another.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::reward {

/// verl's GSM8K rule, on the last 300 characters. Strict: the last `#### <number>`; flexible: the last number.
std::optional<std::string> gsm8k_answer(std::string_view response, bool flexible);

/// The last number of a text, thousands separators removed; nullopt if there is none.
std::optional<std::string> last_number(std::string_view text);
/// Two numerals of equal value ("18" and "18.0"); false if one is no number.
bool same_number(std::string_view a, std::string_view b);
/// The value of a text that is one decimal numeral and nothing else: an optional sign, digits with at most one point, an optional
/// exponent. nullopt for inf, nan, hexadecimal, underscores, blanks, and for what leaves the range of a double.
std::optional<double> decimal_value(std::string_view text);

/// The DAPO rule (Yu et al., 2025).
struct DapoStyle {
  bool strict_box = false;    ///< the last box in the last 100 characters, as text
  bool integer_gold = false;  ///< slime: gold is compared as an integer (18.0 as 18), exactly; one that is none as text
  bool drop_markers = false;  ///< slime: end-of-text markers are deleted
  int64_t box_from = -1;      ///< strict_box, MindSpeed with pause tokens: from this byte on, in place of the last 100 characters
};
struct DapoResult {
  bool right = false;
  std::optional<std::string> answer;
};
std::string dapo_normal(std::string answer, bool drop_markers);
DapoResult dapo_grade(std::string_view response, std::string_view gold, const DapoStyle& style);
/// The default form without the cut to 300 characters; `pattern` with one group finds the answer ("" = DAPO's own).
DapoResult dapo_minerva(std::string_view response, std::string_view gold, const DapoStyle& style, const std::string& pattern);
/// The last `\boxed{` up to its brace (never `\fbox`).
std::optional<std::string> dapo_last_boxed(std::string_view text);

/// Multiple choice: the letter an answer settles on, of `letters`; nullopt if it names none, or several at once. A letter is a word of
/// its own, whatever brackets, stars or boxes it stands in; the article in "A man" and the pronoun in "I think" are none.
std::optional<char> choice_letter(std::string_view response, std::string_view letters);
/// The right choice: its letter, its text, or both.
struct ChoiceGold {
  std::optional<char> letter;
  std::string text;
};
/// From a letter (any case), or from the text of one of `choices`.
ChoiceGold choice_gold(const std::string& gold, const std::vector<std::string>& choices);
ChoiceGold choice_gold_at(int64_t index, const std::vector<std::string>& choices);
/// Those of `choices`, or A to J where these are not known.
std::string_view letters_of(const std::vector<std::string>& choices);
/// 1 if the letters agree; without a letter in the response, 1 if it holds the right text and no other of `choices`; else 0.
double choice_score(std::string_view response, const ChoiceGold& gold, const std::vector<std::string>& choices);
/// Lower case, every run of other characters than letters and digits as one space.
std::string choice_normal(std::string_view text);

/// SQuAD's normaliser and the word overlap of two texts.
std::string f1_normal(std::string_view text);
struct F1 {
  double f1 = 0, precision = 0, recall = 0;
};
F1 f1_score(std::string_view response, std::string_view gold);

/// The text begins with one `<think>` block closed by `</think>`.
bool has_think_format(std::string_view response);

struct CosineRange {
  double min_wrong = -1, max_wrong = -0.5, min_right = 0.5, max_right = 1;
  int64_t max_tokens = 1000;
};
/// Cosine length scaling (Yeo et al., 2025): short right answers are worth most, short wrong ones least.
double cosine_score(bool right, int64_t tokens, const CosineRange& range);

/// Kimi k1.5's length reward within a group (2025, section 2.3.3): 0.5 - (length - shortest) / (longest - shortest). A wrong
/// answer gets at most 0. All get 0 if all are of one length.
std::vector<double> length_rewards(const std::vector<bool>& right, std::span<const int64_t> tokens);

/// (1 - distinct n-grams / n-grams) * max_penalty over words or token ids given as texts or numbers.
double repetition_penalty(std::span<const int64_t> items, int64_t ngram, double max_penalty);
/// Items of a text for the above: its white-space separated words, numbered by first occurrence.
std::vector<int64_t> words_as_items(std::string_view text);

/// 0 up to limit - cache, then linear through -1 at the limit, without a floor.
double overlong_ramp(int64_t tokens, int64_t limit, int64_t cache);

/// DAPO's soft overlong punishment: 0 up to limit - cache, linear to -1 at the limit.
double overlong_penalty(int64_t tokens, int64_t limit, int64_t cache);

/// deepscaler: what follows `</think>` or `###Response`; nullopt without a marker or a box there.
std::optional<std::string> deepscaler_answer(std::string_view response);

/// The format part (at most 0.2) and the part for visible steps (0 or 0.1) of `graded_math`.
double tag_score(std::string_view response);
bool shows_steps(std::string_view response);

/// The last `count` characters (code points) of a text.
std::string_view last_characters(std::string_view text, size_t count);

}  // namespace tandem::reward
