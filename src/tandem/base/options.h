// SPDX-License-Identifier: Apache-2.0
#pragma once
// One line per option: default (the member's initialiser), help, check and name. YAML, --set, --help and the dump of a
// resolved recipe all read the list that the same describe() functions fill.
//
//   struct Options { int64_t kv_block_tokens = 16; };
//   inline void describe(OptionVisitor& field, Options& o) {
//     field("kv_block_tokens", o.kv_block_tokens, "Tokens held by one KV block.", zero_or_power_of_two(16));
//   }

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tandem {

using OptionValue = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*>;

/// Tells what a right value would be ("at least 1"), or "" if the value is right.
using OptionCheck = std::function<std::string(const OptionValue&)>;

OptionCheck at_least(double bound);
OptionCheck above(double bound);
OptionCheck between(double low, double high);
/// 0, or a power of two that is no less.
OptionCheck zero_or_power_of_two(int64_t least);
OptionCheck one_of(std::vector<std::string> names);

struct OptionRef {
  std::string_view name;
  OptionValue value;
  std::string_view help;
  OptionCheck check;
};

/// One option of a visited tree with its dotted path.
struct OptionEntry {
  std::string path;
  OptionRef ref;
};
struct OptionSection {
  std::string path;
  std::string help;
};

/// Every option that describe() functions name, under its dotted path, in order of declaration.
class OptionList {
 public:
  template <class T>
  void operator()(std::string_view name, T& value, std::string_view help, OptionCheck check = {}) {
    entries.push_back({prefix_ + std::string(name), {name, &value, help, std::move(check)}});
  }
  template <class Options>
  void section(std::string_view name, Options& options, std::string_view help) {
    const std::string outer = prefix_;
    sections.push_back({outer + std::string(name), std::string(help)});
    prefix_ = sections.back().path + ".";
    describe(*this, options);
    prefix_ = outer;
  }

  std::vector<OptionEntry> entries;
  std::vector<OptionSection> sections;

 private:
  std::string prefix_;
};
/// As describe() functions take it.
using OptionVisitor = OptionList;

/// Sets one option from text and checks it. Errors: UserError naming `where`, the option and what would be right.
void set_option(const OptionEntry& entry, const std::string& text, const std::string& where);
/// Applies the entry's check to its present value. Errors: as set_option.
void check_option(const OptionEntry& entry, const std::string& where);
/// The value as YAML text.
std::string option_text(const OptionValue& value);
const char* option_type(const OptionValue& value);

/// The name nearest to `wanted` by edit distance; "" if `names` is empty.
std::string nearest_name(std::string_view wanted, const std::vector<std::string>& names);
/// The same if it may be what was meant: the edits are at most a third of the letters of the longer name. Else "".
std::string near_name(std::string_view wanted, const std::vector<std::string>& names);

}  // namespace tandem
