// SPDX-License-Identifier: Apache-2.0
#pragma once
// The environment's half of conversations, in threads of its own beside generation.
//
//   submit (a group whose samples have said something) --> [Episode::next of each] --> collect (what follows for each sample)

#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tandem/generate/episode.h"
#include "tandem/text/tokenizer.h"

namespace tandem::generate {

/// What follows for a sample.
struct SampleTurn {
  enum class Kind : int { kDone, kGoesOn, kAnew };
  Kind kind = Kind::kDone;      ///< kAnew: the conversation failed, and the sample begins again
  std::vector<int32_t> ids;     ///< kGoesOn: to be appended
  bool is_full = false;         ///< kDone: the environment would have gone on, and there is no room
  std::optional<double> reward;  ///< kDone: of all turns
  int64_t turns = 0, failures = 0;  ///< kDone: of the environment, and conversations that failed before
};
struct GroupTurn {
  data::GroupId group{};
  std::vector<SampleTurn> samples;
};

std::string to_text(const std::vector<GroupTurn>& turns);
/// Errors: PeerError for a text that to_text did not make.
std::vector<GroupTurn> turns_of(const std::string& text);

/// Ownership  its threads; uses the tokenizer.
/// Threads    one that submits and collects.
/// Blocking   collect, until the deadline. Its end abandons turns in progress.
/// Errors     none but fault(): conversations of one sample that failed options.attempts times. From then on nothing is collected.
class Turns {
 public:
  /// `text_of`: of ids that the policy drew in one turn. `most_tokens`: of a response.
  struct Setup {
    std::shared_ptr<const Environment> environment;
    const text::Tokenizer& tokenizer;
    int64_t vocab_size, group_size;
    uint64_t seed;
    std::function<std::string(std::span<const int32_t> ids)> text_of;
    std::function<int64_t(data::SampleId sample)> most_tokens;
  };
  explicit Turns(Setup setup);
  ~Turns();
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  /// One of its samples, at least, is not over.
  void submit(const data::Group& group, const std::vector<bool>& is_over);
  /// Groups whose samples all have their turn, in any order.
  std::vector<GroupTurn> collect(const Deadline& deadline);
  void forget(data::GroupId group);
  const std::exception_ptr& fault() const { return fault_; }

 private:
  struct Conversation {
    std::unique_ptr<Episode> episode;
    double spent_s = 0, reward = 0;
    bool has_reward = false;
    int64_t turns = 0, failures = 0;
  };
  struct Out {
    data::Group group;
    GroupTurn turn;
    size_t num_open = 0;
    std::vector<std::shared_ptr<Conversation>> conversations;
  };
  struct Job {
    std::shared_ptr<Out> out;
    size_t place;
  };
  void work(size_t lane);
  SampleTurn take_turn(const Out& out, size_t place, Conversation& conversation, size_t lane) const;
  SampleTurn say(const data::Sample& sample, Conversation& conversation) const;
  Turn timed(Conversation& conversation, const std::function<Turn(Budget&)>& act) const;
  void begin(const data::Group& group, const data::Sample& sample, Conversation& conversation, size_t lane) const;
  bool repeats(const data::Group& group, const data::Sample& sample, Conversation& conversation, size_t lane) const;
  std::vector<int32_t> ids_of(Turn& turn) const;

  const Setup setup_;
  mutable std::mutex mutex_;  // guards what follows but fault_
  std::condition_variable submitted_, answered_;
  std::vector<std::deque<Job>> jobs_;  // by lane
  std::map<data::GroupId, std::shared_ptr<Out>> out_;
  std::map<data::SampleId, std::shared_ptr<Conversation>> conversations_;
  std::vector<data::GroupId> done_;
  std::exception_ptr failed_;
  bool is_closing_ = false;
  int64_t num_busy_ = 0;  // lanes with a turn in progress
  std::exception_ptr fault_;
  std::vector<std::thread> threads_;
};

}  // namespace tandem::generate
