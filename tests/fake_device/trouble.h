// SPDX-License-Identifier: Apache-2.0
#pragma once
// What fake devices get wrong because a test says so.

#include <string>

namespace tandem::device::fake {

/// Words with a comma between, before the first use of a device; those of TANDEM_FAKE_DEVICE are read then:
/// - `lost_after=N`: each device is lost when it has taken so many pieces of work; `device=N`: that one alone is;
/// - `mib=N`: the memory of a device;
/// - `devices=N`: how many there are;
/// - `first=N`: which of the machine's the first of them is;
/// - `wrong=NAME`: what that operator of libtorch computes is one in a hundred too large, such as aten::exp;
/// - `is_found`: auto takes them, as it takes real ones.
/// Errors: UserError naming the variable that the words come from.
void have_trouble(const std::string& words, const std::string& variable);

int num_devices();
int first_of_machine();
bool is_found_by_auto();
/// "" if none is.
const std::string& wrong_operator();

}  // namespace tandem::device::fake
