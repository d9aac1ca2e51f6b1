// SPDX-License-Identifier: Apache-2.0
#include "tandem/hub/fetch.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/json_depth.h"
#include "tandem/base/log.h"
#include "tandem/reward/backend/process.h"
#include "tandem/reward/backend/scripts.h"

namespace tandem::hub {
namespace {

constexpr int kMomentMs = 50;        // between looks at whether to stop
constexpr double kEndPatienceS = 5;  // for Python to end once it has answered
constexpr size_t kMostReplyBytes = 1 << 16;

const char* kind_word(Kind kind) { return kind == Kind::kModel ? "model" : kind == Kind::kTrainData ? "train" : "held_out"; }

reward::Launch launch_of(const Name& name, Kind kind, int reply) {
  TANDEM_CHECK(assets().size() == 1, "one script");
  reward::Launch launch;
  const char* host = name.host == Host::kHuggingFace ? "hf" : "modelscope";
  const std::string script(assets().front().bytes);
  launch.argv = {reward::package_python(""), "-c", script, kind_word(kind), host, name.repository, name.path, name.revision};
  launch.inherit_env = true;
  launch.fds = {-1, reply, STDERR_FILENO};
  return launch;
}

// What the process says, to its end. Errors: PeerError at the deadline; Interrupted.
std::string said(const Descriptor& from, const std::string& where, const FetchOptions& options) {
  const Deadline deadline = Deadline::after_s(options.timeout_s);
  std::string text;
  char block[4096];
  while (text.size() < kMostReplyBytes) {
    if (options.stop && options.stop()) throw Interrupted("stopped while " + where + " was fetched; what is here by now stays");
    if (deadline.passed())
      throw PeerError(join_text(where, ": is not fetched after ", options.timeout_s, " s (run.fetch_timeout_s); what is here stays"));
    pollfd ready{from.number(), POLLIN, 0};
    if (::poll(&ready, 1, kMomentMs) <= 0) continue;
    const ssize_t got = ::read(from.number(), block, sizeof block);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(block, static_cast<size_t>(got));
  }
  return text;
}

}  // namespace

std::string fetched(const Name& name, Kind kind, const std::string& where, const FetchOptions& options) {
  log::info("fetching ", to_text(name), name.revision.empty() ? "" : ", unless it is here");
  auto [reply, for_child] = reward::pipe_pair();
  reward::Process process(launch_of(name, kind, for_child.number()));
  for_child.close();
  const std::string text = said(reply, where, options);
  const int status = process.wait_or_end(kEndPatienceS);
  const nlohmann::json answer = parse_or_discard<nlohmann::json>(text);
  const auto word = [&](const char* key) { return answer.is_object() && answer.contains(key) && answer[key].is_string(); };
  if (word("what") && word("right"))
    throw UserError(where, to_text(name) + " " + answer["what"].get<std::string>(), answer["right"].get<std::string>());
  if (!word("path") || !word("revision"))
    throw PeerError(where + ": fetching " + to_text(name) + " failed, " + reward::status_text(status) + "; what it printed stands above");
  return answer["path"].get<std::string>();
}

std::string local_path(const std::string& text, Kind kind, const std::string& where, const FetchOptions& options) {
  const std::optional<Name> name = name_in(text, kind, where);
  return name ? fetched(*name, kind, where, options) : text;
}

}  // namespace tandem::hub
