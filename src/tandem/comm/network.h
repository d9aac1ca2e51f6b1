// SPDX-License-Identifier: Apache-2.0
#pragma once
// The addresses through which other machines may reach this one, and which of them a job uses.

#include <string>
#include <vector>

namespace tandem::comm {

/// An IPv4 address of this machine.
struct Address {
  std::string interface;  // its name: eth0
  std::string text;       // 10.1.0.7
  int prefix_bits = 32;   // of its subnet
  bool is_loopback = false;

  bool operator==(const Address&) const = default;
};

/// Of interfaces that are up, the loopback last.
std::vector<Address> own_addresses();

/// Those that `choice` names: interfaces and subnets with commas between (`eth0`, `10.1.0.0/16`); all where it is empty.
/// Errors  UserError, as of `where`, for one that names none of `all`.
std::vector<Address> chosen(const std::vector<Address>& all, const std::string& choice, const std::string& where);

}  // namespace tandem::comm
