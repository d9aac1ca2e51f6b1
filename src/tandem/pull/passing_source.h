// SPDX-License-Identifier: Apache-2.0
#pragma once
// A reader's side of weights by pull: fetches one version after the other, and gives on what came where that is worth while.

#include <optional>
#include <string>
#include <vector>

#include "tandem/model/parameters.h"
#include "tandem/pull/weight_server.h"
#include "tandem/pull/weight_source.h"

namespace tandem::pull {

struct PassingOptions {
  double deadline_s = 600;  ///< for a version to come
  std::string host;         ///< at which other readers reach what this one passes on; "": loopback
};

/// Ownership  owns the source and, where weights come by sockets, the server that passes them on.
/// Threads    one at a time; stop, as of WeightSource, on any.
/// Blocking   fetch, at most the deadline.
/// Errors     as WeightSource; UserError for a host that it cannot have.
/// Read next  docs/design/weights_by_pull.md
class PassingSource {
 public:
  /// `table`: how what it fetches is to lie; of the parameters `which`. `holders`: all with one dtype, at least one.
  PassingSource(const model::ParameterTable& table, std::vector<model::family::Parameter> which, std::vector<WeightHolder> holders,
                const PassingOptions& options);

  /// Fills `values`, flat as the table has them, of any dtype. As WeightSource::fetch: not whole if `version` is not the newest.
  Fetched fetch(PolicyVersion version, const at::Tensor& values);
  void stop() { source_.stop(); }
  /// Of what the holders have.

 private:
  const model::ParameterTable table_;
  const PassingOptions options_;
  const at::ScalarType held_dtype_;
  WeightSource source_;
  std::optional<WeightServer> passes_on_;  // once weights came by sockets
};

}  // namespace tandem::pull
