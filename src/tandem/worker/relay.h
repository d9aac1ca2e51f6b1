// SPDX-License-Identifier: Apache-2.0
#pragma once
// A controller that is the client of another: `tandem rollout --join --relay`. To the run it is one worker, however many join it. It
// generates nothing: groups come from above with their prompts, its workers generate them, and their bodies lie here before the run hears.
//
//   above   join --> lease what workers want --> beat for all of them --> put, with bodies        as any client
//   below   a desk, as the run's: workers join, lease, beat and put, and know no difference

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "tandem/base/error.h"
#include "tandem/queue/client.h"
#include "tandem/queue/controller.h"
#include "tandem/queue/desk.h"
#include "tandem/worker/joining.h"

namespace tandem::worker {

/// What a run's welcome says of its queue.
struct RelayTerms {
  queue::Options queue;
  double lease_s = 30;
  queue::Takes takes = queue::Takes::kScored;
  queue::GroupLimits limits = {};
  Drawing drawing = {};
};

/// What a relay needs of the world around it.
struct RelaySetup {
  std::function<RelayTerms(const std::string& welcome)> terms_of;
  /// For its workers: higher than all before, of this process and of others that answered at its address. May wait a second.
  std::function<queue::Incarnation()> next_incarnation;
  /// As queue::Transport::read. It must be done well before a lease ends.
  std::function<bool(const std::string& store, std::span<const data::SampleId> samples, queue::TensorCache& into)> read;
};

/// What went through it.
struct RelaySummary {
  int64_t groups = 0;        ///< that the run took
  int64_t late = 0;          ///< of no use: the run had given it up, another had finished it, or it was filtered
  int64_t lost = 0;          ///< finished ones whose bodies went with a worker: generated anew here
  bool was_stopped = false;
};

/// The rules of a relay; time comes in as an argument.
/// Ownership  uses the client above.
/// Threads    one; desk() is for any, under mutex().
/// Blocking   as the client above, and as RelaySetup::read. The desk answers meanwhile: workers go on while above is away.
/// Errors     as the client above, and RelaySetup::terms_of.
class Relay {
 public:
  Relay(queue::Client& above, RelaySetup setup) : above_(above), setup_(std::move(setup)) {}

  /// Once, first; turn() does it again where it must. Afterwards its workers may call, unless the run is over.
  void join();
  /// One round: hears and says above what is due. False if there was nothing to do.
  bool turn(double now_s);
  /// Says what its workers had, and goes. They wait, as for a run that is away.
  void leave();

  bool has_ended() const { return above_.has_ended(); }
  /// The same object, and its controller, whatever happens above. After join().
  queue::Desk& desk() { return *desk_; }
  std::mutex& mutex() { return mutex_; }
  const RelaySummary& summary() const { return summary_; }

 private:
  void begin_anew(const std::string& welcome);
  bool tell_failures();
  void say_who_is_barred();
  std::string fault_of_body(const data::Group& group) const;
  bool pass_on();
  bool ask(double now_s);
  void adopt(queue::Task task, data::PolicyVersion version);
  void beat();
  void evict(std::span<const data::GroupId> groups);

  queue::Client& above_;
  const RelaySetup setup_;
  RelayTerms terms_;
  mutable std::mutex mutex_;                             // guards the next three
  std::optional<queue::Follower> controller_;
  std::optional<queue::Desk> desk_;
  std::map<data::GroupId, data::Prompt> prompts_;
  std::map<data::GroupId, queue::LeaseNumber> held_;     // leases from above: the groups of the controller
  std::set<data::GroupId> finished_;                     // that above took, and whose bodies are here
  RelaySummary summary_;
  std::optional<double> beat_s_, asked_s_;
  bool has_more_ = false;                                // tokens to report that the last beat had no room for
};

struct RelayRequest {
  std::string address;       ///< HOST:PORT of the run, or of another relay
  std::string token;         ///< its token
  std::string host;          ///< of this machine, at which the run fetches samples; "": as JoinRequest
  std::string listen;        ///< HOST:PORT at which workers join; port 0: any that is free
  std::string token_file;    ///< where their token is to be written, its secret half beside it (.secret)
  double patience_s = 600;   ///< for which it waits for a run that does not answer, and for a first or another worker
  StopRequested stop;        ///< may be empty
};

/// Passes on until the run is over, or it is asked to stop.
/// Blocking   until then.
/// Errors     UserError for an address that it cannot have; PeerError for a run or workers that are silent for patience_s.
RelaySummary relay_for_run(const RelayRequest& request);

}  // namespace tandem::worker
