// SPDX-License-Identifier: Apache-2.0
// A message is its magic number and its fields. A list is its length and its elements; a variant the number of what it holds, and that.
#include "tandem/queue/message.h"

#include <type_traits>
#include <utility>

#include "tandem/base/file/bytes.h"
#include "tandem/data/columns.h"

namespace tandem::queue {
namespace {

constexpr int64_t kCallMagic = 0x346c6c6143516454;    // "TdQCall4"
constexpr int64_t kOfAnyVersion = 0x00ffffffffffffff;  // of a magic number: all but its last letter
constexpr int64_t kAnswerMagic = 0x3172776e41516454;  // "TdQAnwr1"

constexpr const char* kMessage = "message of the queue";

template <class T>
concept Number = std::is_integral_v<T> || std::is_enum_v<T>;
template <class T>
concept Message = requires(T& m) { T::each(m, [](auto&) {}); };

// What generation and grading read of it.
void each_of(auto& prompt, auto&& field) {
  field(prompt.row), field(prompt.text), field(prompt.ids), field(prompt.answer), field(prompt.data_source), field(prompt.columns);
  field(prompt.messages);
}

struct Pack {
  ByteWriter& out;

  void operator()(const Number auto& value) const { out.number(static_cast<int64_t>(value)); }
  void operator()(const std::string& text) const { out.text(text); }
  void operator()(const Message auto& message) const { std::decay_t<decltype(message)>::each(message, *this); }
  void operator()(const data::Prompt& prompt) const { each_of(prompt, *this); }
  void operator()(const std::vector<data::Group>& heads) const {
    out.bytes(heads.empty() ? std::vector<std::byte>() : data::pack(data::fields_of(heads)));
  }
  template <class T>
  void operator()(const std::vector<T>& list) const {
    out.number(std::ssize(list));
    for (const T& each : list) (*this)(each);
  }
  template <class... T>
  void operator()(const std::variant<T...>& one) const {
    out.number(static_cast<int64_t>(one.index()));
    std::visit(*this, one);
  }
};

struct Unpack {
  ByteReader& in;

  template <Number T>
  void operator()(T& value) const {
    value = static_cast<T>(in.number("a number"));
  }
  void operator()(std::string& text) const { text = in.text("a text"); }
  template <Message T>
  void operator()(T& message) const {
    T::each(message, *this);
  }
  void operator()(data::Prompt& prompt) const { each_of(prompt, *this); }
  void operator()(std::vector<data::Group>& heads) const {
    const std::span<const std::byte> packed = in.bytes("groups");
    if (!packed.empty()) heads = data::groups_of(data::unpack(packed));
  }
  template <class T>
  void operator()(std::vector<T>& list) const {
    const int64_t count = in.count(sizeof(int64_t), "the length of a list");  // no element has fewer bytes
    for (int64_t i = 0; i < count; ++i) {
      T each{};
      (*this)(each);
      list.push_back(std::move(each));
    }
  }
  template <class... T>
  void operator()(std::variant<T...>& one) const {
    const int64_t index = in.number("a kind of message");
    if (index < 0 || index >= static_cast<int64_t>(sizeof...(T))) in.fail("it is of no known kind");
    int64_t next = 0;
    ((next++ == index ? (*this)(one.template emplace<T>()) : void()), ...);
  }
};

std::vector<std::byte> packed(int64_t magic, const auto& message) {
  std::vector<std::byte> bytes;
  ByteWriter out(bytes);
  out.number(magic);
  Pack{out}(message);
  return bytes;
}

template <class T>
T unpacked(std::span<const std::byte> bytes, int64_t magic) {
  ByteReader in(bytes, kMessage);
  if (in.number("magic") != magic) in.fail("another version of Tandem wrote it, or none");
  T message;
  Unpack{in}(message);
  if (!in.at_end()) in.fail("bytes behind the end");
  return message;
}

}  // namespace

int64_t num_bytes(const data::Group& group) {
  int64_t all = 0;
  for (const data::Sample& s : group.samples)
    data::each_list(s, [&](const auto&, const auto& list) { all += static_cast<int64_t>(list.size() * sizeof(list[0])); });
  return all;
}

std::vector<std::byte> to_bytes(const Call& call) { return packed(kCallMagic, call); }
std::vector<std::byte> to_bytes(const Answer& answer) { return packed(kAnswerMagic, answer); }
Call call_of(std::span<const std::byte> bytes) { return unpacked<Call>(bytes, kCallMagic); }

bool is_of_this_version(std::span<const std::byte> bytes) { return ByteReader(bytes, kMessage).number("magic") == kCallMagic; }

Call head_of(std::span<const std::byte> bytes) {
  ByteReader in(bytes, kMessage);
  if (((in.number("magic") ^ kCallMagic) & kOfAnyVersion) != 0) in.fail("it is no call");
  Call head;
  const Unpack unpack{in};
  unpack(head.incarnation), unpack(head.worker), unpack(head.number);
  if (is_of_this_version(bytes)) unpack(head.key);
  return head;
}

Answer answer_of(std::span<const std::byte> bytes) { return unpacked<Answer>(bytes, kAnswerMagic); }

}  // namespace tandem::queue
