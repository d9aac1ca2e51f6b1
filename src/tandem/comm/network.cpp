// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <memory>
#include <optional>
#include <sstream>

#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem::comm {
namespace {

uint32_t bits_of(const sockaddr* address) { return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr); }

std::optional<uint32_t> parsed(const std::string& text) {
  in_addr address{};
  if (inet_pton(AF_INET, text.c_str(), &address) != 1) return std::nullopt;
  return ntohl(address.s_addr);
}

std::string text_of(const sockaddr* address) {
  std::array<char, INET_ADDRSTRLEN> text{};
  inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text.data(), text.size());
  return text.data();
}

/// Bits that a subnet of `prefix_bits` fixes.
uint32_t mask_of(int prefix_bits) { return prefix_bits == 0 ? 0 : ~uint32_t{0} << (32 - prefix_bits); }

bool is_chosen(const Address& address, const std::string& word) {
  const size_t slash = word.find('/');
  if (slash == std::string::npos) return address.interface == word;
  const std::optional<uint32_t> subnet = parsed(word.substr(0, slash)), own = parsed(address.text);
  int prefix_bits = -1;
  const char *begin = word.data() + slash + 1, *end = word.data() + word.size();
  if (std::from_chars(begin, end, prefix_bits).ptr != end || prefix_bits < 0 || prefix_bits > 32) return false;
  return subnet && own && ((*subnet ^ *own) & mask_of(prefix_bits)) == 0;
}

std::string listed(const std::vector<Address>& all) {
  std::string text;
  for (const Address& a : all) text += join_text(text.empty() ? "" : ", ", a.interface, " ", a.text, "/", a.prefix_bits);
  return text;
}

}  // namespace

std::vector<Address> own_addresses() {
  std::vector<Address> found;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, freeifaddrs);
  for (const ifaddrs* each = all; each; each = each->ifa_next) {
    if (!each->ifa_addr || each->ifa_addr->sa_family != AF_INET || !(each->ifa_flags & IFF_UP)) continue;
    const int prefix_bits = each->ifa_netmask ? std::popcount(bits_of(each->ifa_netmask)) : 32;
    found.push_back({each->ifa_name, text_of(each->ifa_addr), prefix_bits, (each->ifa_flags & IFF_LOOPBACK) != 0});
  }
  std::ranges::stable_sort(found, {}, &Address::is_loopback);
  return found;
}

std::vector<Address> chosen(const std::vector<Address>& all, const std::string& choice, const std::string& where) {
  if (choice.empty()) return all;
  std::vector<Address> found;
  std::istringstream words(choice);
  for (std::string word; std::getline(words, word, ',');) {
    bool names_one = false;
    for (const Address& address : all) {
      if (!is_chosen(address, word)) continue;
      names_one = true;
      if (std::ranges::find(found, address) == found.end()) found.push_back(address);
    }
    if (!names_one)
      throw UserError(where, "no address of this machine is of `" + word + "`", "the name or subnet of one of: " + listed(all));
  }
  return found;
}

}  // namespace tandem::comm
