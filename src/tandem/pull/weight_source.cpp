// SPDX-License-Identifier: Apache-2.0
#include "tandem/pull/weight_source.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/comm/shared_memory.h"
#include "tandem/model/parameters.h"
#include "tandem/reshard/held_weights.h"
#include "tandem/pull/boxes.h"

namespace tandem::pull {
namespace {

constexpr double kAnswerPauseS = 0.05, kAskAgainS = 5, kFarAgainS = 60, kGiverS = 60, kProbeS = 0.25;

constexpr size_t kMostOthers = 8;
constexpr std::chrono::milliseconds kWait{20};  // until it asks again who can give

}  // namespace

struct WeightSource::Known {
  WeightHolder holder;
  model::ParameterTable table;
  comm::Endpoint endpoint;
  bool shares = false;  // its memory may be mapped
  // As its values lie.
  at::Tensor without_values() const { return at::empty({table.num_elements}, at::TensorOptions(holder.dtype).device(at::kMeta)); }
};

WeightSource::WeightSource(const model::ModelConfig& config, std::vector<model::family::Parameter> which,
                           std::vector<WeightHolder> holders, double deadline_s)
    : config_(config), which_(std::move(which)), deadline_s_(deadline_s) {
  for (WeightHolder& each : holders) holders_.push_back(known(std::move(each)));
}
WeightSource::~WeightSource() = default;

std::unique_ptr<WeightSource::Known> WeightSource::known(WeightHolder holder) const {
  const size_t space = holder.place.find(' ');
  const std::string address = holder.place.substr(0, space), key = space == std::string::npos ? "" : holder.place.substr(space + 1);
  model::ParameterTable table = model::parameter_table(config_, holder.layout, holder.rank, which_);
  return std::make_unique<Known>(
      Known{std::move(holder), std::move(table), comm::Endpoint::to(address, key), comm::stays_on_this_machine(address)});
}

bool WeightSource::uses_sockets() const {
  return std::ranges::any_of(holders_, [](const auto& holder) { return !holder->shares; });
}

// What of the wanted lies there, by messages.
std::vector<std::vector<NumberedBox>> WeightSource::parts_from(const Known& holder, const Wanted& wanted) const {
  return parts_of(common_boxes(wanted.into, reshard::held_weights(holder.table, holder.without_values(), wanted.dtype)), wanted.dtype);
}

// `letter` keeps what the answer points to.
WeightsAnswer WeightSource::ask(Known& holder, WeightsRequest request, std::vector<std::byte>& letter, const Wanted& wanted) {
  request.number = ++num_requests_;
  const std::vector<std::byte> bytes = to_bytes(request);
  const Deadline patience = Deadline::after_s(wanted.answer_s);
  const auto is_over = [&] { return patience.passed() || wanted.deadline.passed() || is_stopped_; };
  while (!is_over()) {
    holder.endpoint.send({{}, bytes});
    Deadline probe = Deadline::after_s(kProbeS);
    for (const Deadline again = Deadline::after_s(holder.shares ? kAskAgainS : kFarAgainS); !again.passed() && !is_over();) {
      std::optional<comm::Letter> answer = holder.endpoint.receive(kAnswerPauseS);
      if (!answer) {
        if (!probe.passed()) continue;
        if (comm::is_refused(holder.endpoint.address())) throw PeerError("weights at " + holder.holder.place + ": nobody answers there");
        probe = Deadline::after_s(kAskAgainS);
        continue;
      }
      letter = std::move(answer->bytes);
      bytes_received_ += std::ssize(letter);
      const WeightsAnswer read = weights_answer_of(letter);
      if (read.number == request.number) return read;
    }
  }
  if (is_stopped_) throw PeerError("weights are not wanted any more");
  throw PeerError(join_text("weights at ", holder.holder.place, ": no answer within ", std::min(wanted.answer_s, deadline_s_), " s"));
}

// False if the memory cannot be mapped here.
bool WeightSource::map(Known& holder, const Wanted& wanted, Fetched& so_far) {
  const auto& [version, into, dtype, deadline, answer_s] = wanted;
  std::vector<std::byte> letter;
  const WeightsAnswer answer = ask(holder, {.ask = WeightsRequest::Ask::kMap, .version = version, .dtype = dtype}, letter, wanted);
  so_far = {answer.has_it, answer.newest};
  if (!answer.has_it) return true;
  if (!answer.lent) throw PeerError("weights at " + holder.holder.place + ": an answer without any");
  const int64_t bytes = holder.table.num_elements * static_cast<int64_t>(c10::elementSize(holder.holder.dtype));
  const std::shared_ptr<comm::BorrowedMemory> memory = comm::BorrowedMemory::map(*answer.lent);
  if (!memory || std::ssize(memory->bytes()) < kSecretBytes + bytes ||
      std::memcmp(memory->bytes().data(), &answer.secret, sizeof answer.secret) != 0)
    return false;
  const std::shared_ptr<const void> lent = comm::until_given_back(memory);
  auto* from = const_cast<std::byte*>(memory->bytes().data() + kSecretBytes);  // a tensor is never const; nothing writes it
  const at::Tensor values = at::from_blob(from, {holder.table.num_elements}, at::TensorOptions(holder.holder.dtype));
  const std::vector<reshard::Held> held = reshard::held_weights(holder.table, values, dtype);
  for (const NumberedBox& each : common_boxes(into, held)) view_of(into, each).copy_(view_of(held, each).to(dtype));
  return true;
}

void WeightSource::receive(Known& holder, const Wanted& asked, Fetched& so_far) {
  const auto& [version, into, dtype, deadline, answer_s] = asked;
  std::vector<std::byte> letter;
  for (const std::vector<NumberedBox>& part : parts_from(holder, asked)) {
    const WeightsAnswer answer = ask(holder, {.version = version, .dtype = dtype, .boxes = part}, letter, asked);
    so_far = {answer.has_it, answer.newest};
    if (!answer.has_it) return;
    const std::byte* at = answer.boxes.data();
    for (int64_t left = std::ssize(answer.boxes); const NumberedBox& each : part) {
      const at::Tensor came = at::from_blob(const_cast<std::byte*>(at), each.box.shape(), at::TensorOptions(dtype));
      left -= static_cast<int64_t>(came.nbytes());
      if (left < 0 || (&each == &part.back() && left > 0))
        throw PeerError("weights at " + holder.holder.place + ": other boxes than were asked for");
      view_of(into, each).copy_(came);
      at += came.nbytes();
    }
  }
}

// Who passes weights on may have others, by whatever fault. `so_far` is not whole if the run has newer ones by now.
bool WeightSource::are_those_of_the_run(const Wanted& wanted, Fetched& so_far) {
  const auto& [version, into, dtype, deadline, answer_s] = wanted;
  std::vector<std::byte> letter;
  for (const std::unique_ptr<Known>& holder : holders_)
    for (const std::vector<NumberedBox>& part : parts_from(*holder, wanted)) {
      const WeightsRequest request{.ask = WeightsRequest::Ask::kDigest, .version = version, .dtype = dtype, .boxes = part};
      const WeightsAnswer answer = ask(*holder, request, letter, wanted);
      so_far = {answer.has_it, answer.newest};
      if (!answer.has_it) return true;
      if (answer.digest != digest_of(values_of(into, part, dtype))) return false;
    }
  return true;
}

void WeightSource::fetch_from(Known& holder, const Wanted& wanted, Fetched& so_far) {
  if (holder.shares && !map(holder, wanted, so_far)) holder.shares = false;
  if (!holder.shares && so_far.is_whole) receive(holder, wanted, so_far);
}

// Another reader. Connections to the last few are kept.
WeightSource::Known& WeightSource::other(const WeightHolder& holder) {
  const auto found = std::ranges::find_if(others_, [&](const auto& each) { return each->holder == holder; });
  if (found != others_.end()) return **found;
  if (others_.size() == kMostOthers) others_.erase(others_.begin());
  return *others_.emplace_back(known(holder));
}

// The first holder knows who else has them. One that fails is named to it, and it names another.
Fetched WeightSource::fetch(PolicyVersion version, std::span<const reshard::Held> into, at::ScalarType dtype) {
  check_covers(into, dtype);
  const Deadline deadline = Deadline::after_s(deadline_s_);
  const Wanted wanted{version, into, dtype, deadline, deadline_s_};
  Wanted of_another = wanted;  // one that hangs is not waited for as long as the run
  of_another.answer_s = std::min(kGiverS, deadline_s_ / 4);
  Fetched fetched{true, version};
  std::vector<std::byte> letter;
  WeightHolder failed;
  while (uses_sockets()) {
    const WeightsAnswer where =
        ask(*holders_.front(), {.ask = WeightsRequest::Ask::kWhere, .version = version, .holder = failed, .part = part_}, letter, wanted);
    if (!where.has_it) return {false, where.newest};
    if (where.waits) {
      if (deadline.passed()) throw PeerError(join_text("weights: nobody was free to give them within ", deadline_s_, " s"));
      std::this_thread::sleep_for(kWait);
      continue;
    }
    if (!where.elsewhere) break;
    bool came = false;
    try {
      fetch_from(other(*where.elsewhere), of_another, fetched);
      came = fetched.is_whole || fetched.newest > version;
    } catch (const PeerError&) {  // it is gone, or says nonsense
    } catch (const UserError&) {  // there can be nobody
    }
    if (came && (!fetched.is_whole || are_those_of_the_run(wanted, fetched))) return fetched;
    if (came)
      log::warning("weights of version ", value(version), " at ", where.elsewhere->place, " are not those of the run: another gives them");
    std::erase_if(others_, [&](const auto& each) { return each->holder == *where.elsewhere; });
    failed = *where.elsewhere;
    fetched = {true, version};
  }
  for (const std::unique_ptr<Known>& holder : holders_) {
    fetch_from(*holder, wanted, fetched);
    if (!fetched.is_whole) break;
  }
  return fetched;
}

// Nobody waits for the answer: if it is lost, who gave the version counts as busy for a while.
void WeightSource::tell(PolicyVersion version, const WeightHolder& holder) {
  const auto has = WeightsRequest::Ask::kHave;
  const WeightsRequest request{.number = ++num_requests_, .ask = has, .version = version, .holder = holder, .part = part_};
  holders_.front()->endpoint.send({{}, to_bytes(request)});
}

// Errors: InternalError.
void WeightSource::check_covers(std::span<const reshard::Held> into, at::ScalarType dtype) {
  if (std::exchange(is_checked_, true)) return;
  std::map<int32_t, std::vector<Box>> missing;
  for (const reshard::Held& each : into) missing[each.number] = {each.box};
  for (const std::unique_ptr<Known>& holder : holders_)
    for (const reshard::Held& held : reshard::held_weights(holder->table, holder->without_values(), dtype))
      if (const auto found = missing.find(held.number); found != missing.end()) found->second = subtract(found->second, held.box);
  for (const auto& [number, boxes] : missing) TANDEM_CHECK(boxes.empty(), "nobody has all of parameter ", number);
}

}  // namespace tandem::pull
