// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rule that asks a server.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/base/options.h"

namespace tandem::reward {

class Rule;
struct Score;

struct HttpOptions {
  std::string url;
  int64_t http_retries = 3;
};
void describe(OptionVisitor& field, HttpOptions& o);

/// Scores from a server: POST of batch_json to options.url. The reply is a list, alone or under `scores` or `rewards`. Its entries
/// are numbers, or objects with `score` and further numbers. An attempt takes at most timeout_s in all, from the look-up of the name to
/// the last byte. Errors: UserError for another reply, one that is too large, or one of status 4xx; PeerError if the server cannot be
/// had after options.http_retries more attempts.
std::unique_ptr<Rule> http_rule(const HttpOptions& options, double timeout_s);

/// What the body of a reply gives each of `count` answers. Errors: UserError naming `where` for another form.
std::vector<Score> scores_of_reply(std::string_view body, size_t count, const std::string& where);

}  // namespace tandem::reward
