// SPDX-License-Identifier: Apache-2.0
#pragma once
// Between a client and the queue of another process, on this machine or another: sockets.

#include <optional>
#include <string>

#include "tandem/base/error.h"
#include "tandem/comm/endpoint.h"
#include "tandem/queue/backend/wire/store_server.h"
#include "tandem/queue/client.h"

namespace tandem::queue::wire {

struct TransportOptions {
  std::string address;                              ///< of the controller
  std::string token;                                ///< its public key
  std::string store_address = "tcp://127.0.0.1:0";  ///< where the own store answers
  double deadline_s = 60;                           ///< for a store to answer
};

/// Ownership  uses the own store, and owns a thread that answers for it.
/// Errors     as Endpoint; UserError from receive() where the token is another's.
class Transport final : public queue::Transport {
 public:
  Transport(const TransportOptions& options, const Store& own)
      : options_(options),
        own_(own, options.store_address),
        stores_(options.deadline_s),
        controller_(comm::Endpoint::to(options.address, options.token)) {}

  void send(const Call& call) override { controller_.send({{}, to_bytes(call)}); }
  std::optional<Answer> receive(double seconds) override {
    const std::optional<comm::Letter> letter = controller_.receive(seconds);
    if (controller_.is_turned_away())
      throw UserError("--token", "the run at " + options_.address + " has another", "the file `token` in the folder of that run");
    if (!letter) return std::nullopt;
    try {
      return answer_of(letter->bytes);
    } catch (const PeerError&) {  // then the call is sent again
      return std::nullopt;
    }
  }
  bool read(const std::string& store, std::span<const SampleId> samples, TensorCache& into) override {
    return stores_.read(store, samples, into);
  }
  const std::string& own_store() const override { return own_.place(); }
  std::string name() const override { return "queue at " + options_.address; }

 private:
  const TransportOptions options_;
  StoreServer own_;
  StoreReader stores_;
  comm::Endpoint controller_;
};

}  // namespace tandem::queue::wire
