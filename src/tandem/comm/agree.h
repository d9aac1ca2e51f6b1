// SPDX-License-Identifier: Apache-2.0
#pragma once
// What ranks tell each other beside tensors: texts, faults, named numbers, ids, rows. Every function here is collective.

#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "tandem/comm/group.h"

namespace tandem::comm {

/// The text of each rank, in rank order; that of rank 0.
std::vector<std::string> texts_of_all(Group& group, const std::string& mine);
std::string text_of_first(Group& group, const std::string& mine);

/// What failed on a rank.
struct Fault {
  int exit_code = 0;      ///< base/error.h:exit_code_of
  std::string what;
  int64_t rank = 0;
  bool is_shared = false;  ///< all ranks bring it, in the same words: they have heard of it already
};

/// The fault of the first rank that brings one, in place of what it says of rank and is_shared; nullopt where none does.
std::optional<Fault> first_fault(Group& group, const std::optional<Fault>& mine);

/// Runs `work` on every rank; where it is collective, it must end alike by itself.
/// Errors  what `work` throws, with one rank; with several, where it fails on some, one PeerError on all: the fault of the first of
///         them, with its rank.
void run_alike(Group& group, const std::function<void()>& work);

/// All ranks have come when it returns. Others may come much later than this one, so nobody waits in a call that has a deadline, but looks
/// now and then; a rank that is gone ends that.
void meet(Group& group);

/// Of each name the largest number of any rank.
std::map<std::string, double> largest_of_all(Group& group, const std::map<std::string, double>& mine);

/// `rows[i]` is filled by the rank that owns row i and empty elsewhere; afterwards filled everywhere. A rank that does not speak
/// brings none of its own.
void exchange_rows(Group& group, std::vector<std::vector<float>>& rows, bool speaks);

/// The bytes of rank 0, on all; equally many everywhere.
void broadcast_bytes(Group& group, std::span<std::byte> bytes);

/// The value of rank 0.
template <class Value>
Value value_of_first(Group& group, Value mine) {
  static_assert(std::is_trivially_copyable_v<Value>);
  if (group.size() > 1) broadcast_bytes(group, std::as_writable_bytes(std::span(&mine, 1)));
  return mine;
}

/// The values of every rank, in rank order; ranks may bring different numbers of them.
template <class Value>
std::vector<Value> values_of_all(Group& group, const std::vector<Value>& mine) {
  static_assert(std::is_trivially_copyable_v<Value>);
  if (group.size() == 1) return mine;
  std::vector<Value> all;
  for (const std::vector<std::byte>& part : all_gather_bytes(group, std::as_bytes(std::span(mine)))) {
    const size_t before = all.size();
    all.resize(before + part.size() / sizeof(Value));
    if (!part.empty()) std::memcpy(all.data() + before, part.data(), part.size());
  }
  return all;
}

}  // namespace tandem::comm
