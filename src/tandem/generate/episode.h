// SPDX-License-Identifier: Apache-2.0
#pragma once
// Conversations of the policy with an environment. A sample is one: the policy says something until it ends its turn, the environment
// answers, and so on until the environment is done, or no room is left in the response.
//
//   prompt | policy | environment | policy | environment | ... | policy           one list of tokens; those of the environment are not
//                                                                                 trained on (data::Sample::trainable)

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/data/sample.h"
#include "tandem/monitor/notices.h"
#include "tandem/reward/options.h"
#include "tandem/rollout/options.h"

namespace tandem::generate {

/// What the policy said since the environment last spoke.
struct Spoken {
  std::string text;
  std::span<const int32_t> ids;
  int64_t turn = 0;     ///< from 0
  bool is_cut = false;  ///< the response is full: whatever the environment says, this was the last turn
};

/// What the environment says. Of text and ids one is empty.
struct Turn {
  std::string text;
  std::vector<int32_t> ids;
  std::optional<double> reward;  ///< those of a conversation add up to the score of the sample. If none gives any, the recipe's rule scores
  bool is_done = false;
};

/// What an episode's environment may still take of its time.
struct Budget {
  double left_s = 0;
  double excused_s = 0;  ///< out: waits that are not its own, as for a process that starts
};

/// One conversation.
/// Threads    one at a time.
/// Errors     whatever it throws: the conversation has failed, and begins anew (rollout/options.h:EpisodeOptions).
class Episode {
 public:
  virtual ~Episode() = default;
  /// Blocking: for the budget, which it keeps itself: nobody can end it. After it whatever it gives is of no use.
  virtual Turn next(const Spoken& spoken, Budget& budget) = 0;
};

/// What held a conversation lost it, with others: it is repeated elsewhere up to where it was, and that is no failure of its own.
class EpisodeGone : public PeerError {
  using PeerError::PeerError;
};

/// What a conversation begins with.
struct EpisodeStart {
  const data::Prompt& prompt;
  uint64_t seed = 0;  ///< with the same one the environment says the same again to the same words
  int64_t lane = 0;   ///< below EpisodeOptions::workers; conversations of one lane have their turns one after the other
};
/// Threads: any. Errors and blocking: as Episode::next.
using MakeEpisode = std::function<std::unique_ptr<Episode>(const EpisodeStart& start, Budget& budget)>;

/// The environment of a run, on the ranks that talk to it.
struct Environment {
  MakeEpisode make;
  rollout::EpisodeOptions options;
  std::shared_ptr<monitor::Notices> notices;
  std::function<void()> abandon = {};  ///< makes turns in progress end soon, by throwing; later ones work. May be empty
};

/// That of the recipe: a name of the table in environments.cpp, or FILE.py:CLASS. Errors: UserError for one that there is not, or that
/// does not load. Null where there are no episodes. Of `reward` it takes the Python and the notices.
std::shared_ptr<const Environment> make_environment(const rollout::EpisodeOptions& options, const reward::Options& reward);

}  // namespace tandem::generate
