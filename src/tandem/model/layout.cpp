// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/layout.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem::model {

Layout parse_layout(const std::string& text, const std::string& where) {
  Layout layout;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto digits = part.find_first_of("0123456789");
    const std::string axis = part.substr(0, digits);
    int degree = 0;
    const char* end = part.data() + part.size();
    const bool number = digits != std::string::npos && std::from_chars(part.data() + digits, end, degree).ptr == end;
    if (!number || degree < 1) throw UserError(where, "'" + part + "' in the layout '" + text + "'", "an axis and its degree, as in dp2,tp4");
    if (axis == "dp") layout.dp = degree;
    else if (axis == "tp") layout.tp = degree;
    else if (axis == "cp" || axis == "pp" || axis == "vpp" || axis == "ep" || axis == "etp") {
      if (degree > 1) throw UserError(where, "axis '" + part + "' cannot be run in this version", "dp and tp");
    } else {
      throw UserError(where, "unknown axis '" + axis + "' in the layout '" + text + "'", "dp or tp");
    }
  }
  return layout;
}

std::string to_string(const Layout& layout) { return join_text("dp", layout.dp, ",tp", layout.tp); }

void check_layout(const Layout& layout, const ModelConfig& c, const std::string& where) {
  const auto divides = [&](int64_t n, const char* what) {
    if (n % layout.tp != 0) throw UserError(where, join_text("tp", layout.tp, " does not divide ", n, " ", what), "a divisor");
  };
  divides(c.num_heads, "attention heads");
  divides(c.intermediate_size, "columns of the MLP");
  if (c.moe.num_experts > 0) divides(c.moe.intermediate_size, "columns of an expert");
  divides(c.vocab_size, "rows of the vocabulary");
  if (c.num_kv_heads % layout.tp != 0 && layout.tp % c.num_kv_heads != 0)
    throw UserError(where, join_text("tp", layout.tp, " against ", c.num_kv_heads, " kv heads"), "one must divide the other");
}

int64_t local_kv_heads(const ModelConfig& config, int tp) { return std::max<int64_t>(1, config.num_kv_heads / tp); }

Box box_of(const family::Parameter& parameter, const ModelConfig& config, int tp, int tp_rank) {
  Box box = Box::whole(parameter.shape);
  const auto cut = [&](size_t dim, int64_t parts, int64_t index) {
    const int64_t size = parameter.shape[dim] / parts;
    box.begin[dim] = index * size;
    box.end[dim] = (index + 1) * size;
  };
  switch (parameter.split) {
    case family::Split::kNone:
    case family::Split::kPartial: break;
    case family::Split::kRows: cut(0, tp, tp_rank); break;
    case family::Split::kColumns: cut(1, tp, tp_rank); break;
    case family::Split::kKvRows: {
      const int64_t parts = std::min<int64_t>(tp, config.num_kv_heads);
      cut(0, parts, tp_rank * parts / tp);
      break;
    }
  }
  return box;
}

std::vector<TensorSpec> boxes_of(const ModelConfig& config, const Layout& layout, int rank) {
  std::vector<TensorSpec> specs;
  for (const family::Parameter& p : family::parameters(config))
    specs.push_back({p.name, p.shape, box_of(p, config, layout.tp, layout.tp_rank(rank))});
  return specs;
}

}  // namespace tandem::model
