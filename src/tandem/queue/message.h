// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a client and the controller's desk say to each other, as values and as bytes. One call, one answer.
//
//   call     who calls, under which incarnation, which of its calls this is; then one of the verbs
//   answer   to which call, the newest policy version; then what the verb gives, or why there is nothing
//
// `each` names the fields of a message in the order in which they travel.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "tandem/queue/controller.h"
#include "tandem/queue/news.h"

namespace tandem::queue {

constexpr size_t kMaxStore = 256;
constexpr int64_t kMostReportBytes = 8 << 20;  ///< of tokens in one call::Beat, but for a single group; carriers take 32 MiB

/// What tells a client from all others: it alone knows it, and says it with each call.
struct ClientKey {
  int64_t first = 0, second = 0;

  bool operator==(const ClientKey&) const = default;
  static void each(auto& m, auto&& field) { field(m.first), field(m.second); }
};

namespace call {
/// A new client. The number of the call is one that no other join has: one that comes twice gives the same client.
struct Join {
  std::string store;  ///< where its store answers, another for each client; at most kMaxStore characters
  std::string dtype = {};   ///< in which it generates; "" as the recipe has it
  std::string device = {};  ///< the kind of device on which it does so where the recipe leaves it open; "" for one that only passes on
  static void each(auto& m, auto&& field) { field(m.store), field(m.dtype), field(m.device); }
};
struct LeaseGroups {
  int64_t most = 0;
  PolicyVersion version{};
  int64_t speaks_for = 1;  ///< workers
  int64_t weights_checksum = 0;  ///< of the weights of `version` there (model/weight_checksum.h); 0: none that the run could compare
  static void each(auto& m, auto&& field) { field(m.most), field(m.version), field(m.speaks_for), field(m.weights_checksum); }
};
struct Beat {
  PolicyVersion version{};
  std::vector<Standing> leases;
  std::vector<GroupId> finished;  ///< of which it has the bodies
  std::vector<data::Group> begun;  ///< of leases that are reported: the tokens that are new since the last beat
  std::vector<Known> from = {};    ///< behind what each of their samples goes on
  static void each(auto& m, auto&& field) { field(m.version), field(m.leases), field(m.finished), field(m.begun), field(m.from); }
};
/// Heads of finished groups, each with its lease.
struct Put {
  std::vector<LeaseNumber> leases;
  std::vector<data::Group> heads;
  std::vector<int64_t> measures = {};  ///< for each head as many numbers, for who takes it: such as measures_of (body/body.h); or none
  static void each(auto& m, auto&& field) { field(m.leases), field(m.heads), field(m.measures); }
};
/// By who has the weights of `version`.
struct Take {
  StepId step{};
  PolicyVersion version{};
  static void each(auto& m, auto&& field) { field(m.step), field(m.version); }
};
struct Commit {
  StepId step{};
  PolicyVersion after{};
  static void each(auto& m, auto&& field) { field(m.step), field(m.after); }
};
/// Bodies that were not in the store where they should be.
struct Lose {
  std::vector<GroupId> groups;
  std::string store;
  static void each(auto& m, auto&& field) { field(m.groups), field(m.store); }
};
struct Leave {
  std::string why;  ///< what failed there; "" where it just goes
  static void each(auto& m, auto&& field) { field(m.why); }
};
}  // namespace call

struct Call {
  Incarnation incarnation{};
  WorkerId worker{};
  int64_t number = 0;  ///< of its calls, from 1
  std::variant<call::Join, call::LeaseGroups, call::Beat, call::Put, call::Take, call::Commit, call::Lose, call::Leave> verb;
  ClientKey key = {};
  static void each(auto& m, auto&& field) { field(m.incarnation), field(m.worker), field(m.number), field(m.key), field(m.verb); }
};

namespace answer {
struct Joined {
  WorkerId worker{};
  int64_t group_size = 0;
  std::string welcome;  ///< what the run tells those who join
  static void each(auto& m, auto&& field) { field(m.worker), field(m.group_size), field(m.welcome); }
};
struct Leased {
  std::vector<Lease> leases;
  std::vector<data::Prompt> prompts;  ///< of each lease
  std::vector<data::Group> begun;     ///< of those that go on: what another reported
  static void each(auto& m, auto&& field) { field(m.leases), field(m.prompts), field(m.begun); }
};
/// Groups that are not to go on: to call::Beat those of the worker, to call::Commit all that left untrained.
struct Over {
  std::vector<GroupId> groups;
  static void each(auto& m, auto&& field) { field(m.groups); }
};
/// For each group of a call::Put whether its body is of any use.
struct Kept {
  std::vector<bool> kept;
  static void each(auto& m, auto&& field) { field(m.kept); }
};
/// Empty: no batch is ready.
struct Taken {
  std::vector<data::Group> heads;
  std::vector<std::string> stores;               ///< of each head, where its body is
  std::vector<std::vector<int64_t>> measures = {};  ///< of each head, as it was put
  static void each(auto& m, auto&& field) { field(m.heads), field(m.stores), field(m.measures); }
};
struct Done {
  static void each(auto&, auto&&) {}
};
/// There is nothing, for the client knows another incarnation, or is not known: it has to join.
struct JoinAgain {
  static void each(auto&, auto&&) {}
};
/// There is nothing, and never will be: the run is over.
struct Ended {
  static void each(auto&, auto&&) {}
};
/// The call is wrong, and was not carried out.
struct Refused {
  std::string why;
  static void each(auto& m, auto&& field) { field(m.why); }
};
}  // namespace answer

struct Answer {
  Incarnation incarnation{};
  int64_t number = 0;       ///< of the call
  PolicyVersion version{};  ///< the newest
  std::variant<answer::Joined, answer::Leased, answer::Over, answer::Kept, answer::Taken, answer::Done, answer::JoinAgain, answer::Ended,
               answer::Refused> what;
  static void each(auto& m, auto&& field) { field(m.incarnation), field(m.number), field(m.version), field(m.what); }
};

/// Of a message that has the tokens of a group, but for a few.
int64_t num_bytes(const data::Group& group);
std::vector<std::byte> to_bytes(const Call& call);
std::vector<std::byte> to_bytes(const Answer& answer);
/// Inverse of to_bytes. Errors: PeerError for bytes that are no call; they never read outside `bytes`.
Call call_of(std::span<const std::byte> bytes);
/// What all versions of Tandem say in front of a call, and nothing of its verb. Errors: as call_of.
Call head_of(std::span<const std::byte> bytes);
bool is_of_this_version(std::span<const std::byte> bytes);
Answer answer_of(std::span<const std::byte> bytes);

}  // namespace tandem::queue
