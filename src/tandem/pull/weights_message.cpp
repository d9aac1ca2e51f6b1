// SPDX-License-Identifier: Apache-2.0
#include "tandem/pull/weights_message.h"

#include "tandem/base/file/bytes.h"

namespace tandem::pull {
namespace {

constexpr int64_t kMagic = 0x3365724f57516454;  // "TdQWOre3"
constexpr int64_t kMaxDims = 8;

void write(ByteWriter& out, const std::vector<int64_t>& numbers) { out.raw(numbers.data(), numbers.size() * sizeof(int64_t)); }

std::vector<int64_t> read(ByteReader& in, int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  in.raw(numbers.data(), numbers.size() * sizeof(int64_t), "a corner of a box");
  return numbers;
}

at::ScalarType read_dtype(ByteReader& in) {
  const int64_t dtype = in.number("a dtype");
  if (dtype != static_cast<int64_t>(at::kFloat) && dtype != static_cast<int64_t>(at::kBFloat16)) in.fail("a dtype that weights have not");
  return static_cast<at::ScalarType>(dtype);
}

}  // namespace

void write(ByteWriter& out, const WeightHolder& holder) {
  out.text(holder.place);
  out.text(model::to_string(holder.layout));
  out.number(holder.rank);
  out.number(static_cast<int64_t>(holder.dtype));
}

void read(ByteReader& in, WeightHolder& holder) {
  holder.place = in.text("a place");
  if (holder.place.size() > kMaxPlace) in.fail(join_text("a place of ", holder.place.size(), " characters"));
  const std::string layout = in.text("a layout");
  try {
    holder.layout = model::parse_layout(layout, "a holder of weights");
  } catch (const UserError& e) {
    in.fail(e.what());
  }
  const int64_t rank = in.number("a rank");
  if (rank < 0 || rank >= holder.layout.world()) in.fail("a rank that its layout does not have");
  holder.rank = static_cast<int>(rank);
  holder.dtype = read_dtype(in);
}

std::vector<std::byte> to_bytes(const WeightsRequest& request) {
  std::vector<std::byte> bytes;
  ByteWriter out(bytes);
  for (const int64_t each : {kMagic, request.number, static_cast<int64_t>(request.ask), value(request.version)}) out.number(each);
  write(out, request.holder);
  out.text(request.part);
  out.number(static_cast<int64_t>(request.dtype));
  out.number(std::ssize(request.boxes));
  for (const NumberedBox& each : request.boxes) {
    out.number(each.number);
    out.number(std::ssize(each.box.begin));
    write(out, each.box.begin);
    write(out, each.box.end);
  }
  return bytes;
}

WeightsRequest weights_request_of(std::span<const std::byte> bytes) {
  ByteReader in(bytes, "request of weights");
  if (in.number("magic") != kMagic) in.fail("another version of Tandem wrote it, or none");
  WeightsRequest request;
  request.number = in.number("its number");
  const int64_t ask = in.number("what it asks");
  if (ask < 0 || ask > static_cast<int64_t>(WeightsRequest::Ask::kHave)) in.fail("it asks nothing that is known");
  request.ask = static_cast<WeightsRequest::Ask>(ask);
  request.version = PolicyVersion{in.number("the version")};
  read(in, request.holder);
  request.part = in.text("its part");
  if (request.part.size() > kMaxPart) in.fail(join_text("a part of ", request.part.size(), " characters"));
  request.dtype = read_dtype(in);
  for (int64_t left = in.count(2 * sizeof(int64_t), "the number of boxes"); left > 0; --left) {
    NumberedBox& each = request.boxes.emplace_back();
    each.number = static_cast<int32_t>(in.number("a parameter"));
    const int64_t dims = in.number("its dimensions");
    if (dims < 0 || dims > kMaxDims) in.fail(join_text("a box of ", dims, " dimensions"));
    each.box.begin = read(in, dims);
    each.box.end = read(in, dims);
  }
  if (!in.at_end()) in.fail("bytes behind the end");
  return request;
}

std::vector<std::byte> to_bytes(const WeightsAnswer& answer) {
  std::vector<std::byte> bytes;
  ByteWriter out(bytes);
  for (const int64_t each : {answer.number, value(answer.newest), static_cast<int64_t>(answer.has_it), static_cast<int64_t>(answer.waits),
                             static_cast<int64_t>(answer.elsewhere.has_value()), static_cast<int64_t>(answer.lent.has_value()),
                             static_cast<int64_t>(answer.digest)})
    out.number(each);
  if (answer.elsewhere) write(out, *answer.elsewhere);
  if (answer.lent) {
    out.number(answer.secret);
    out.raw(&*answer.lent, sizeof *answer.lent);
  }
  out.raw(answer.boxes.data(), answer.boxes.size());
  return bytes;
}

WeightsAnswer weights_answer_of(std::span<const std::byte> bytes) {
  ByteReader in(bytes, "answer of a holder of weights");
  WeightsAnswer answer;
  answer.number = in.number("its number");
  answer.newest = PolicyVersion{in.number("the newest version")};
  answer.has_it = in.number("whether it has it") != 0;
  answer.waits = in.number("whether to wait") != 0;
  const bool is_elsewhere = in.number("whether another has it") != 0, is_lent = in.number("whether it is lent") != 0;
  answer.digest = static_cast<uint64_t>(in.number("a digest"));
  if (is_elsewhere) read(in, answer.elsewhere.emplace());
  if (is_lent) {
    answer.secret = in.number("its secret");
    in.raw(&answer.lent.emplace(), sizeof(comm::SharedHandle), "where it lies");
  }
  answer.boxes = in.rest();
  return answer;
}

}  // namespace tandem::pull
