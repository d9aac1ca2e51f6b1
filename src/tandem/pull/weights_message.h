// SPDX-License-Identifier: Apache-2.0
#pragma once
// What who wants weights and who holds some say to each other, as values and as bytes.
//
//   request   magic, its number, what it asks, the version; the dtype on the way and boxes, or a holder
//   answer    the number of the request, the newest version, whether the one that was asked for is here; then the boxes one after the
//             other or their digest, where the whole buffer lies in shared memory, or who else has it

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tandem/base/box.h"
#include "tandem/base/file/bytes.h"
#include "tandem/base/ids.h"
#include "tandem/comm/shared_handle.h"
#include "tandem/model/layout.h"

namespace tandem::pull {

/// A box of the parameter of that number, in model::flat_order.
struct NumberedBox {
  int32_t number = 0;
  Box box;
};

/// One that holds a part of the weights: where, and how they lie there.
struct WeightHolder {
  std::string place;        ///< WeightServer::place
  model::Layout layout;
  int rank = 0;             ///< of that layout
  at::ScalarType dtype = at::kFloat;

  bool operator==(const WeightHolder& other) const { return place == other.place; }
};
void write(ByteWriter& out, const WeightHolder& holder);
/// Errors: PeerError for what is no holder.
void read(ByteReader& in, WeightHolder& holder);

struct WeightsRequest {
  enum class Ask : int64_t {
    kBoxes,  ///< their values
    kDigest,  ///< of their values
    kMap,    ///< where the buffer lies
    kWhere,  ///< from whom to take them, by sockets; `holder`: who failed, if somebody did
    kHave,   ///< nothing: it came, and `holder` has it, too, and passes it on, if a place is named
  };
  int64_t number = 0;
  Ask ask = Ask::kBoxes;
  PolicyVersion version{};
  at::ScalarType dtype = at::kFloat;
  std::vector<NumberedBox> boxes = {};
  WeightHolder holder = {};
  std::string part = {};    ///< kWhere and kHave: what the reader takes of the model; those of one part pass it on to each other
};
constexpr size_t kMaxPart = 64, kMaxPlace = 256;
std::vector<std::byte> to_bytes(const WeightsRequest& request);
/// Inverse of to_bytes. Errors: PeerError for bytes that are no request; it never reads outside `bytes`.
WeightsRequest weights_request_of(std::span<const std::byte> bytes);

struct WeightsAnswer {
  int64_t number = 0;
  PolicyVersion newest{-1};         ///< that the holder has; -1: none yet
  bool has_it = false;              ///< the version that was asked for is here
  std::span<const std::byte> boxes = {};  ///< in place; of kBoxes alone
  uint64_t digest = 0;              ///< of kDigest: of the same bytes, as digest_of
  int64_t secret = 0;               ///< at the beginning of the buffer
  std::optional<comm::SharedHandle> lent = {};
  bool waits = false;               ///< whoever could give it has somebody else to give it to: ask again
  std::optional<WeightHolder> elsewhere = {};
};
/// Appends `boxes` as they come.
std::vector<std::byte> to_bytes(const WeightsAnswer& answer);
/// Errors: PeerError for bytes that are no answer; it never reads outside `bytes`.
WeightsAnswer weights_answer_of(std::span<const std::byte> bytes);

}  // namespace tandem::pull
