// SPDX-License-Identifier: Apache-2.0
// Synthetic additions: a task a tiny model can learn in minutes, with a clean split.
#include <algorithm>
#include <optional>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/data/generated/draw.h"

namespace tandem::data {
namespace {

class AdditionSource : public PromptSource {
 public:
  AdditionSource(const Options& options, Split split) : options_(options), split_(split), name_("synthetic") {
    if (options.min_digits > options.digits)
      throw UserError("data.min_digits", "is " + std::to_string(options.min_digits),
                      "expected at most data.digits, which is " + std::to_string(options.digits));
    at(0);  // a range so small that one side of the split is empty shows here
  }

  int64_t size() const override { return split_ == Split::kTrain ? options_.synthetic_rows : options_.synthetic_eval_rows; }
  std::string where(int64_t row) const override { return join_text(name_, " row ", row + 1); }
  const std::string& name() const override { return name_; }

  Prompt at(int64_t row) const override {
    TANDEM_CHECK(row >= 0 && row < size(), "row ", row, " of ", size());
    const char* advice = "expected more digits or another fraction";
    return first_drawn(options_, split_, row, advice, [&](RandomStream& stream) -> std::optional<Prompt> {
      const int64_t a = operand(stream), b = operand(stream);
      if (is_held_out(a, b, options_.held_out_fraction) != (split_ == Split::kHeldOut)) return std::nullopt;
      Prompt prompt;
      prompt.row = row;
      prompt.text = written(a) + "+" + written(b) + "=";
      prompt.answer = written(a + b);
      prompt.data_source = name_;
      return prompt;
    });
  }

 private:
  int64_t operand(RandomStream& stream) const {
    const int64_t low_digits = options_.min_digits == 0 ? options_.digits : options_.min_digits;
    const int64_t digits = low_digits + stream.below(options_.digits - low_digits + 1);
    int64_t low = 1;
    for (int64_t i = 1; i < digits; ++i) low *= 10;
    return digits == 1 ? stream.below(10) : low + stream.below(9 * low);
  }

  std::string written(int64_t number) const {
    std::string text = std::to_string(number);
    if (options_.reversed) std::reverse(text.begin(), text.end());
    return text;
  }

  Options options_;
  Split split_;
  std::string name_;
};

}  // namespace

bool is_held_out(int64_t a, int64_t b, double fraction, uint64_t kind) {
  constexpr uint64_t kSplitSeed = 0x7A4D;  // fixed: the split must be the same for every seed of a run
  const auto low = static_cast<uint64_t>(std::min(a, b)), high = static_cast<uint64_t>(std::max(a, b));
  return RandomStream(kSplitSeed ^ (low << 20) ^ (kind << 60), high, low).uniform() < fraction;
}

std::string as_read(const Options& options, std::string text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  for (auto at = text.begin(); options.reversed && (at = std::find_if(at, text.end(), is_digit)) != text.end();) {
    const auto end = std::find_if_not(at, text.end(), is_digit);
    std::reverse(at, end);
    at = end;
  }
  return text;
}

std::unique_ptr<PromptSource> open_additions(const Options& options, Split split) {
  return std::make_unique<AdditionSource>(options, split);
}

}  // namespace tandem::data
