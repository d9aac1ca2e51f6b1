// SPDX-License-Identifier: Apache-2.0
// The environments that the program brings, by name.
#include <algorithm>
#include <utility>

#include "tandem/base/error.h"
#include "tandem/base/strings.h"
#include "tandem/generate/episode.h"
#include "tandem/generate/python_episode.h"

namespace tandem::generate {
namespace {

// A wrong answer is asked for once more: 1 for the first, 0.5 for the second, 0 for neither.
class SecondTry final : public Episode {
 public:
  explicit SecondTry(const data::Prompt& prompt) : question_(prompt.text), answer_(prompt.answer) {}

  Turn next(const Spoken& spoken, Budget&) override {
    const bool is_right = spoken.text.find(answer_) != std::string::npos;
    if (is_right) return {.reward = spoken.turn == 0 ? 1.0 : 0.5, .is_done = true};
    if (spoken.turn > 0 || spoken.is_cut) return {.reward = 0.0, .is_done = true};
    return {.text = question_};
  }

 private:
  const std::string question_, answer_;
};

struct Named {
  const char* name;
  std::unique_ptr<Episode> (*make)(const EpisodeStart& start);
};

constexpr Named kEnvironments[] = {
    {"second_try", [](const EpisodeStart& start) -> std::unique_ptr<Episode> { return std::make_unique<SecondTry>(start.prompt); }},
};

}  // namespace

std::shared_ptr<const Environment> make_environment(const rollout::EpisodeOptions& options, const reward::Options& reward) {
  if (options.environment.empty()) return nullptr;
  const auto found = std::ranges::find(kEnvironments, options.environment, &Named::name);
  if (found != std::end(kEnvironments))
    return std::make_shared<Environment>(
        Environment{[make = found->make](const EpisodeStart& start, Budget&) { return make(start); }, options, reward.notices});
  if (options.environment.find(':') != std::string::npos) return python_environment(options, reward);
  std::vector<std::string> names;
  for (const Named& each : kEnvironments) names.emplace_back(each.name);
  throw UserError("episode.environment", options.environment + " is none", joined(names, ", ") + ", or a class of yours, FILE.py:CLASS");
}

}  // namespace tandem::generate
