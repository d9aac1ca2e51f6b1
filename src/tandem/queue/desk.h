// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where calls of clients reach a controller, whatever carries them. A call is carried out once, however often it comes; what is not of this
// incarnation, or of a client that was given up, changes nothing. A value with rules, as the controller.

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tandem/queue/body/limits.h"
#include "tandem/queue/controller.h"
#include "tandem/queue/message.h"

namespace tandem::queue {

/// What became of calls.
struct CallCounters {
  int64_t answered = 0;
  int64_t repeated = 0;           ///< were carried out before, and got the same answer
  int64_t of_another_incarnation = 0, of_unknown = 0;
  int64_t refused = 0;            ///< made no sense
  int64_t went_on = 0;            ///< groups of beats that had more tokens than before
};

/// By which way a call came: the connection, and the host at its other end as the system says it; "" where nobody knows.
struct Origin {
  std::string line, host;
};

/// A client that said what cannot be. Nothing that it says is heard from then on.
struct Barred {
  std::optional<WorkerId> worker = {};  ///< none for one that is no client
  std::string host, store, why;
};

/// Ownership  uses the controller, which is told nothing else meanwhile.
/// Threads    one.
/// Errors     none for what a client sends, right or wrong: it is refused.
class Desk {
 public:
  /// Of what workers are told to generate.
  using PromptOf = std::function<data::Prompt(GroupId)>;
  /// Bodies that no client has, as those of a checkpoint, are at `own_store`. Without `prompt_of` prompts are empty. Who joins gets
  /// `welcome`.
  Desk(Controller& controller, Incarnation incarnation, std::string own_store, PromptOf prompt_of = {}, std::string welcome = "")
      : controller_(controller),
        incarnation_(incarnation),
        own_store_(std::move(own_store)),
        prompt_of_(std::move(prompt_of)),
        welcome_(std::move(welcome)) {}

  /// Empty for a call that is older than one that was answered.
  std::optional<Answer> answer(const Call& call, double now_s, const Origin& from = {});
  /// To a call of so many bytes, of which the head alone was read.
  Answer refuse_long(const Call& head, int64_t bytes, const Origin& from);
  // For who has the controller in the same process; a client does the same by calls. Of both, one takes a batch, and commits it.
  /// The batch of `step`, if one is ready, or was taken before.
  std::optional<answer::Taken> take(StepId step, const std::string& taker = "");
  Left commit(StepId step, PolicyVersion after);
  /// The taken batch, if there is one, will not be trained.
  void give_back();
  /// Clients only generate: none takes a batch, commits one, or says that bodies are lost, and one that says what cannot be is barred: its
  /// leases end. Where `measured`, a put group brings its measures_of (body/body.h).
  void serve_workers(bool measured, const GroupLimits& limits) { is_measured_ = measured, limits_ = limits; }
  /// Asked whether a client may join: "", or why not.
  void admit_by(std::function<std::string(const call::Join&)> refusal) { refusal_ = std::move(refusal); }
  /// Asked of a client's checksum of a version of the weights: "", or what is wrong with it, for which it is barred.
  void check_weights_by(std::function<std::string(PolicyVersion, int64_t checksum)> fault) { weights_fault_ = std::move(fault); }
  /// Bars who put this finished group, if it is still there.
  void accuse(GroupId group, const std::string& why);
  /// Those that were barred since the last call; beyond a number of them they are left out.
  std::vector<Barred> take_barred() { return std::exchange(newly_barred_, {}); }
  /// Of a call that makes sense.
  int64_t most_call_bytes() const;
  /// From now on every call hears that the run is over.
  void end() { has_ended_ = true; }
  /// Groups whose bodies should have been in `store`.
  void lose(std::span<const GroupId> groups, const std::string& store);
  /// Of a finished group: where its body is, and its measures.
  struct Body {
    std::string store;
    std::vector<int64_t> measures = {};
    WorkerId worker{-1};  ///< who put it
  };
  Body body_of(GroupId group) const;
  // For who has a Follower, and a place in the queue above it.
  /// The tokens of a group that it adopted with some.
  void begin_with(LeaseNumber lease, data::Group group) { begun_[group.id] = {lease, std::move(group)}; }
  /// The tokens that workers reported of unfinished groups since the last call: of so many as have `most_bytes`, at least one.
  struct Reports {
    std::vector<data::Group> groups;  ///< by id
    bool more = false;                ///< some are left for the next call
  };
  Reports take_reports(int64_t most_bytes);
  /// Groups left the controller: what is known of them is forgotten.
  void forget_over();
  /// It is unknown from now on, and has to join again; its leases end.
  void forget(WorkerId worker);
  /// As Controller::expire, at a time by which all calls that had come were answered: who is slow to be read is not dead.
  void expire(double now_s);

  Incarnation incarnation() const { return incarnation_; }
  /// What clients said that failed with them, since the last call.
  std::vector<std::string> take_failures() { return std::exchange(failures_, {}); }
  int64_t num_clients() const { return std::ssize(clients_); }
  /// Those that are known, and what they said when they joined.
  std::map<WorkerId, call::Join> clients() const;
  struct ClientReport {
    WorkerState worker;
    std::string store = {};
    int64_t groups = 0, tokens = 0;  ///< that it put since the last report; tokens where serve_workers(true)
  };
  /// Of all clients that are known now.
  std::vector<ClientReport> report_clients();
  const CallCounters& counters() const { return counters_; }

 private:
  struct Client {
    int64_t join = 0, last_call = 0;  // numbers
    Answer last_answer;               // of a lease without prompts and tokens
    call::Join said;
    ClientKey key;
    Origin from;                      // of its last call
    int64_t groups = 0, tokens = 0;   // put since the last report
    std::set<std::string> part_names = {};  // of its scores: what one names is held against no other
  };
  std::string fault_of(decltype(Call::verb) const& verb, const Client& client) const;
  std::string fault_of(const call::Put& put, const Client& client) const;
  std::string fault_of(const call::Beat& beat) const;
  std::string fault_of(const call::Commit& commit, const Client& client) const;
  Answer to(const Call& call, decltype(Answer::what) what) const;
  Answer refused(const Call& call, const std::string& why);
  const std::string* why_barred(const Call& call, const Origin& from) const;
  Answer refuse_impostor(const Call& call, const Origin& from);
  void bar(WorkerId worker, const std::string& why);
  void bar(const Barred& who, const std::vector<std::string>& signs);
  Answer join(const Call& call, double now_s, const Origin& from);
  void fill(answer::Leased& leased) const;
  std::vector<GroupId> beat(WorkerId worker, const call::Beat& beat, const std::string& store, double now_s);
  decltype(Answer::what) carry_out(const Call& call, Client& client, double now_s);

  Controller& controller_;
  const Incarnation incarnation_;
  const std::string own_store_;
  const PromptOf prompt_of_;
  const std::string welcome_;
  bool has_ended_ = false;
  bool is_measured_ = false;
  std::optional<GroupLimits> limits_;       // where clients only generate
  std::function<std::string(const call::Join&)> refusal_;
  std::function<std::string(PolicyVersion, int64_t)> weights_fault_;
  std::map<std::string, std::string> barred_;  // by the sign of a key or a connection: why
  std::vector<Barred> newly_barred_;
  std::map<WorkerId, Client> clients_;
  std::map<int64_t, WorkerId> by_join_;
  std::map<GroupId, Body> bodies_;         // of finished groups
  struct Begun {
    LeaseNumber lease = kNoLease;
    data::Group group;
    bool is_news = false;   // to Reports
  };
  std::map<GroupId, Begun> begun_;         // of unfinished ones: the tokens that were reported, and under which lease
  std::optional<answer::Taken> taken_;     // while it is neither committed nor given back
  std::string taker_;                      // the store of who took it
  std::vector<std::string> failures_;
  CallCounters counters_;
};

}  // namespace tandem::queue
