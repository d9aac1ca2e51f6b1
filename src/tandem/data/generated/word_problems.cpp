// SPDX-License-Identifier: Apache-2.0
#include "tandem/data/generated/word_problems.h"

#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "tandem/base/strings.h"
#include "tandem/data/generated/draw.h"

namespace tandem::data {
namespace {

// {n} and {m} are two people, {t} things, {a} and {b} the numbers. The last phrasing of each operation is held out.
constexpr std::array<std::string_view, 7> kSums = {
    "{n} has {a} {t} and finds {b} more. How many {t} does {n} have now?",
    "A box holds {a} red {t} and {b} blue {t}. How many {t} are in the box?",
    "{n} picks {a} {t} in the morning and {b} in the afternoon. How many {t} is that in all?",
    "There are {a} {t} on one shelf and {b} on another. How many {t} are on both shelves together?",
    "{n} bought {a} {t}. {m} bought {b}. How many {t} did they buy together?",
    "A shop sold {a} {t} on Monday and {b} on Tuesday. How many {t} did it sell on these two days?",
    "{m} has {a} {t}. {n} has {b} more than {m}. How many {t} does {n} have?"};
constexpr std::array<std::string_view, 7> kDifferences = {
    "{n} has {a} {t} and gives {b} to {m}. How many {t} are left?",
    "There were {a} {t} in a bag. {n} took out {b}. How many {t} are still in the bag?",
    "{n} has {a} {t}. {m} has {b} fewer. How many {t} does {m} have?",
    "A shop had {a} {t} and sold {b} of them. How many {t} does it still have?",
    "{n} needs {a} {t} and already has {b}. How many more {t} does {n} need?",
    "{n} counted {a} {t} yesterday and {b} today. How many more {t} were there yesterday?",
    "{n} and {m} have {a} {t} together. {b} of them are {m}'s. How many {t} does {n} have?"};
constexpr std::array<std::string_view, 7> kProducts = {
    "{n} has {a} bags with {b} {t} in each. How many {t} does {n} have?",
    "There are {b} {t} in a box. How many {t} are in {a} boxes?",
    "{n} collects {b} {t} every day for {a} days. How many {t} is that?",
    "There are {a} rows of {b} {t}. How many {t} are there?",
    "Each of {a} children brings {b} {t}. How many {t} do they bring?",
    "{n} buys {a} packs of {b} {t}. How many {t} does {n} get?",
    "{m} has {b} {t}. {n} has {a} times as many. How many {t} does {n} have?"};
constexpr std::array<std::string_view, 16> kPeople = {"Mia",  "Omar", "Lena", "Ravi",  "Zoe",  "Ivan", "Amara", "Jonas",
                                                      "Yuki", "Sara", "Tom",  "Priya", "Kofi", "Nora", "Luis",  "Chen"};
constexpr std::array<std::string_view, 16> kThings = {"apples", "books", "shells", "stamps",  "marbles", "pencils", "cards",  "eggs",
                                                      "coins",  "cups",  "roses",  "tickets", "buttons", "stickers", "lemons", "beads"};

struct Numbers {
  int64_t a, b;
};

enum Operation { kSum, kDifference, kProduct, kNumOperations };

int64_t between(RandomStream& stream, int64_t low, int64_t high) { return low + stream.below(high - low + 1); }

Numbers numbers_of(Operation operation, RandomStream& stream) {
  if (operation == kProduct) return {between(stream, 3, 12), between(stream, 3, 12)};
  const int64_t a = between(stream, operation == kSum ? 3 : 7, 30);
  return {a, between(stream, 3, operation == kSum ? 30 : a - 3)};
}

int64_t answer_of(Operation operation, Numbers n) {
  return operation == kSum ? n.a + n.b : operation == kDifference ? n.a - n.b : n.a * n.b;
}

template <size_t n>
std::string_view one_of(const std::array<std::string_view, n>& texts, RandomStream& stream, size_t leave_out = 0) {
  return texts[static_cast<size_t>(stream.below(static_cast<int64_t>(n - leave_out)))];
}

}  // namespace

WordProblem word_problem(const Options& options, Split split, int64_t row) {
  // The operations take turns: were they drawn again with the numbers, the one with most held-out pairs would fill the evaluation.
  const auto operation = static_cast<Operation>(row % kNumOperations);
  return first_drawn(options, split, row, "expected another fraction", [&](RandomStream& stream) -> std::optional<WordProblem> {
    const Numbers n = numbers_of(operation, stream);
    if (is_held_out(n.a, n.b, options.held_out_fraction, operation + 1) != (split == Split::kHeldOut)) return std::nullopt;
    const auto& phrases = operation == kSum ? kSums : operation == kDifference ? kDifferences : kProducts;
    std::string text(one_of(phrases, stream, split == Split::kTrain ? 1 : 0));
    const auto first = stream.below(std::ssize(kPeople)), second = stream.below(std::ssize(kPeople) - 1);  // of the others
    text = replaced(text, "{n}", kPeople[static_cast<size_t>(first)]);
    text = replaced(text, "{m}", kPeople[static_cast<size_t>(second < first ? second : second + 1)]);
    text = replaced(text, "{t}", one_of(kThings, stream));
    text = replaced(replaced(text, "{a}", std::to_string(n.a)), "{b}", std::to_string(n.b));
    return WordProblem{text, answer_of(operation, n)};
  });
}

}  // namespace tandem::data
