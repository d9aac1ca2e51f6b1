// SPDX-License-Identifier: Apache-2.0
// What comes through the channels of processes that run code of others. The bytes are a Python worker's replies: each is an object, or
// the worker is lost. Then, with a byte 0 between them, they are the output and the channel of a program in the sandbox.
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "folder.h"
#include "tandem/base/error.h"
#include "tandem/base/input/exact_json.h"
#include "tandem/base/log.h"
#include "tandem/reward/backend/program_watch.h"
#include "tandem/reward/backend/python_workers.h"
#include "tandem/reward/code_tests.h"

using namespace tandem;
using namespace tandem::reward;

namespace {

// What the other end has said, and that it says no more.
void say(const Descriptor& end, std::string_view bytes) {
  if (::write(end.number(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) std::abort();
  ::shutdown(end.number(), SHUT_WR);
}

void read_worker(std::string_view input) {
  auto [ours, theirs] = socket_pair();
  auto [log_reader, log_writer] = pipe_pair();
  say(theirs, input);
  say(log_writer, input.substr(0, 2000));
  log_writer.close();
  PythonWorker worker("fuzz");
  worker.adopt(Process(), std::move(ours), std::move(log_reader));
  try {
    for (int i = 0; i < 3; ++i)
      if (!worker.exchange("{\"seed\": 1}", 5).is_object()) std::abort();
  } catch (const PythonWorker::Lost&) {
  }
}

void read_program(std::string_view input) {
  static const fuzz::Folder folder;
  SandboxLimits limits;
  limits.wall_s = 5;
  limits.output_bytes = 4096;
  auto [output, output_writer] = pipe_pair();
  auto [errors, errors_writer] = pipe_pair();
  auto [ours, theirs] = socket_pair();
  const std::string_view printed = fuzz::take_part(input);
  say(output_writer, printed);
  say(errors_writer, printed);
  say(theirs, input);
  output_writer.close();
  errors_writer.close();
  ProgramWatch watch({std::move(output), std::move(errors), std::move(ours)}, limits, folder.path());
  const ProgramRun run = watch.follow(Process(), R"({"call": "f", "args": []})");
  if (static_cast<int64_t>(run.output.size()) > limits.output_bytes) std::abort();
  same_output(run.output, printed);
  const auto answer = parse_exact(run.answer).value;
  if (answer.is_object() && answer.contains("value")) same_result(answer["value"], nlohmann::ordered_json::array({1, 2.5, "x"}));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  log::quiet(true);
  const std::string_view input(reinterpret_cast<const char*>(data), std::min(size, size_t{16384}));  // what a pipe takes at once
  read_worker(input);
  read_program(input);
  return 0;
}
