// SPDX-License-Identifier: Apache-2.0
// The environments that the program brings, by name.
#include <algorithm>
#include <utility>

#include "tandem/base/error.h"
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

// Asks for the answer twice, without looking at what is right: 1 if the two differ.
class Again final : public Episode {
 public:
  Turn next(const Spoken& spoken, Budget&) override {
    if (spoken.turn > 0) return {.reward = spoken.text == first_ ? 0.0 : 1.0, .is_done = true};
    if (spoken.is_cut) return {.reward = 0.0, .is_done = true};
    first_ = spoken.text;
    return {.text = "again: "};
  }

 private:
  std::string first_;
};

struct Named {
  const char* name;
  std::unique_ptr<Episode> (*make)(const EpisodeStart& start);
};

constexpr Named kEnvironments[] = {
    {"second_try", [](const EpisodeStart& start) -> std::unique_ptr<Episode> { return std::make_unique<SecondTry>(start.prompt); }},
    {"again", [](const EpisodeStart&) -> std::unique_ptr<Episode> { return std::make_unique<Again>(); }},
};

}  // namespace

std::shared_ptr<const Environment> make_environment(const rollout::EpisodeOptions& options, const PythonHost& host) {
  const auto found = std::ranges::find(kEnvironments, options.environment, &Named::name);
  if (found != std::end(kEnvironments))
    return std::make_shared<Environment>(
        Environment{[make = found->make](const EpisodeStart& start, Budget&) { return make(start); }, options, host.notices});
  if (options.environment.find(':') != std::string::npos) return python_environment(options, host);
  std::string names;
  for (const Named& each : kEnvironments) names += std::string(names.empty() ? "" : ", ") + each.name;
  throw UserError("episode.environment", options.environment + " is none", names + ", or a class of yours, FILE.py:CLASS");
}

}  // namespace tandem::generate
