// SPDX-License-Identifier: Apache-2.0
#pragma once
// Numbers that all ranks of a group have to agree on. Every function here is collective; a group of one rank asks nobody.

#include <cstdint>
#include <span>
#include <vector>

#include "tandem/comm/group.h"

namespace tandem::comm {

/// The largest, the smallest and the sum of what the ranks bring; sums run in rank order.
int64_t max_over(Group& group, int64_t mine);
double max_over(Group& group, double mine);
int64_t min_over(Group& group, int64_t mine);
double min_over(Group& group, double mine);
int64_t sum_over(Group& group, int64_t mine);
double sum_over(Group& group, double mine);

/// Whether it is true on any rank.
bool any_of(Group& group, bool mine);

/// Each number becomes the largest, or the sum, of those at its place; all ranks bring equally many, in one all_reduce.
void max_over(Group& group, std::span<int64_t> numbers);
void max_over(Group& group, std::span<double> numbers);
void sum_over(Group& group, std::span<double> numbers);

/// So the fields of a record, all doubles, which its each() visits always in one order.
template <class Record>
void sum_fields(Group& group, Record& record) {
  std::vector<double> numbers;
  record.each([&](double& field) { numbers.push_back(field); });
  sum_over(group, numbers);
  size_t next = 0;
  record.each([&](double& field) { field = numbers[next++]; });
}

}  // namespace tandem::comm
