// SPDX-License-Identifier: Apache-2.0
#pragma once
// Weights by pull: a process that is no rank of the run asks for the boxes of its own layout, in its own dtype.

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tandem/base/clock.h"
#include "tandem/comm/endpoint.h"
#include "tandem/model/layout.h"
#include "tandem/reshard/execute.h"
#include "tandem/pull/weights_message.h"

namespace tandem::pull {

/// What became of a fetch.
struct Fetched {
  bool is_whole = false;        ///< else what it was to fill is a mixture, and of no use
  PolicyVersion newest{-1};     ///< that the holders have
};

/// Threads    one at a time; stop on any.
/// Blocking   fetch, at most the deadline.
/// Errors     PeerError for a holder that does not answer by then, and for an answer that makes no sense; InternalError if the holders
///            together lack a part of what is wanted.
class WeightSource {
 public:
  /// Of these parameters alone: model::family::parameters(config), or its adapters.
  WeightSource(const model::ModelConfig& config, std::vector<model::family::Parameter> which, std::vector<WeightHolder> holders,
               double deadline_s);
  ~WeightSource();

  /// Fills `into`, boxes in the order of their numbers, with the weights of `version`; on the way they are of `dtype`, that of `into` or
  /// narrower (held_weights.h). Not whole if it is not the newest: then it says which is. On one machine it reads them in place; else from
  /// another that has them, if there is one that has nobody to give them to; then the run's own say by a digest whether they are theirs.
  Fetched fetch(PolicyVersion version, std::span<const reshard::Held> into, at::ScalarType dtype);
  /// Whether the holders' memory cannot be read in place, so that it is worth while to pass on what was fetched.
  bool uses_sockets() const;
  /// To be said after a fetch by sockets: this version came. `holder` has it, too, all of its part, and passes it on; none if it has no
  /// place. It waits for no answer.
  void tell(PolicyVersion version, const WeightHolder& holder = {});
  /// A fetch that goes on ends with PeerError, soon, and so do all after it.
  void stop() { is_stopped_ = true; }
  /// What those of one part fetch is alike, so that they may pass it on to each other; "" by default: all of the model. At most kMaxPart.
  void set_part(std::string part) { part_ = std::move(part); }
  /// What came through sockets.
  int64_t bytes_received() const { return bytes_received_; }

 private:
  struct Known;
  struct Wanted {
    PolicyVersion version;
    std::span<const reshard::Held> into;
    at::ScalarType dtype;  // on the way
    Deadline deadline;
    double answer_s;  // for each answer
  };
  WeightsAnswer ask(Known& holder, WeightsRequest request, std::vector<std::byte>& letter, const Wanted& wanted);
  std::unique_ptr<Known> known(WeightHolder holder) const;
  void check_covers(std::span<const reshard::Held> into, at::ScalarType dtype);
  Known& other(const WeightHolder& holder);
  bool map(Known& holder, const Wanted& wanted, Fetched& so_far);
  std::vector<std::vector<NumberedBox>> parts_from(const Known& holder, const Wanted& wanted) const;
  void receive(Known& holder, const Wanted& wanted, Fetched& so_far);
  void fetch_from(Known& holder, const Wanted& wanted, Fetched& so_far);
  bool are_those_of_the_run(const Wanted& wanted, Fetched& so_far);

  const model::ModelConfig config_;
  const std::vector<model::family::Parameter> which_;
  const double deadline_s_;
  std::string part_;
  std::vector<std::unique_ptr<Known>> holders_;   // of the run
  std::vector<std::unique_ptr<Known>> others_;    // that passed on weights before
  bool is_checked_ = false;
  std::atomic<bool> is_stopped_ = false;
  int64_t num_requests_ = 0, bytes_received_ = 0;
};

}  // namespace tandem::pull
