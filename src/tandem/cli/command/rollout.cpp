// SPDX-License-Identifier: Apache-2.0
// `tandem rollout`: this process generates for a run, or relays between it and others that do, and comes and goes as it likes.
#include <CLI/App.hpp>
#include <vector>

#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/base/log.h"
#include "tandem/cli/command/command.h"
#include "tandem/cli/signals.h"
#include "tandem/worker/relay.h"
#include "tandem/worker/worker.h"

namespace tandem::cli {
namespace {

constexpr const char* kExamples =
    "The run says its address when workers may join: `tandem run RECIPE --rollout-workers N`, or workers.listen in its recipe. Recipe,\n"
    "tokenizer, prompts and weights come from there. Ctrl-C leaves: others go on with what is unfinished, from its last tokens.\n"
    "With --relay this process generates nothing: the workers of its machine join it by the same command, and the run hears one voice for\n"
    "all of them. A relay may join a relay. --relay-token says where the token goes that its workers need.\n"
    "A worker draws as the run does, in the same dtype and on the same kind of device; where the loss corrects for the difference\n"
    "(algo.correction), it need not.\n"
    "Examples:\n"
    "  tandem rollout --join 127.0.0.1:7070 --token RUN_DIR/token\n"
    "  tandem rollout --join 10.0.0.7:7070 --token token --host 10.0.0.8 --threads 8\n"
    "  tandem rollout --join 10.0.0.7:7070 --token token --host 10.0.0.8 --relay 127.0.0.1:7071 --relay-token relay_token\n"
    "  tandem rollout --join 127.0.0.1:7071 --token relay_token";

class Rollout : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_option("--join", request_.address, "Address of the run, as its log says it")->type_name("HOST:PORT")->required();
    app.add_option("--token", token_, "File with the token of the run: RUN_DIR/token, as its log says it")
        ->type_name("FILE");
    app.add_option("--relay", relay_.listen, "Generate nothing: let workers join here, and be one worker to the run for all of them")
        ->type_name("HOST:PORT");
    app.add_option("--relay-token", relay_.token_file, "File for the token by which workers join the relay; FILE.secret has the other key")
        ->type_name("FILE");
    worker::GeneratorOptions& generator = request_.generator;
    app.add_option("--host", generator.host,
                   "Address of this machine at which the run fetches samples; without it the one from which this machine reaches the run")
        ->type_name("HOST");
    generates_ = {
        app.add_option("--layout", generator.layout, "Layout of the replica, such as tp2, with a thread for each rank; without it one rank")
            ->type_name("LAYOUT"),
        app.add_option("--dtype", generator.dtype, "Compute dtype, where the run lets it be another than its own")
            ->check(CLI::IsMember({"float32", "bfloat16"})),
        app.add_option("--threads", generator.threads, "Compute threads; 0 takes every core")->check(CLI::Range(0, 1024)),
        app.add_option("--tokens-per-s", generator.tokens_per_s, "Draw at most so many tokens a second; 0: no bound")
            ->check(CLI::Range(0.0, 1e12))};
    app.add_option("--patience", request_.patience_s,
                   "Seconds for which a run may give no answer, as while it is started again, and a relay be without a worker")
        ->check(CLI::Range(0.001, 1e9))
        ->capture_default_str();
    app.footer(kExamples);
  }

  void run() override {
    if (token_.empty())
      throw UserError("--token", "is missing: only who has the run's token may join",
                      "--token RUN_DIR/token; the log of the run names that file");
    request_.token = read_file(token_);
    while (!request_.token.empty() && request_.token.back() == '\n') request_.token.pop_back();
    request_.stop = [&flag = stop_on_signals()] { return flag.load(); };
    if (!relay_.listen.empty()) return relay();
    if (!relay_.token_file.empty()) throw UserError("--relay-token", "there is no relay", "--relay HOST:PORT");
    const worker::WorkerSummary s = worker::generate_for_run(request_);
    log::info(s.was_stopped ? "left the run: " : "the run is over: ", s.groups, " groups, ", s.tokens, " tokens, ", s.versions, " versions",
              s.late > 0 ? join_text("; ", s.late, " groups more were of no use: too late, or filtered") : std::string());
  }

 private:
  void relay() {
    for (const CLI::Option* each : generates_)
      if (each->count() > 0) throw UserError(each->get_name(), "a relay generates nothing", "it for the workers that join the relay");
    relay_.address = request_.address;
    relay_.token = request_.token;
    relay_.host = request_.generator.host;
    relay_.patience_s = request_.patience_s;
    relay_.stop = request_.stop;
    const worker::RelaySummary s = worker::relay_for_run(relay_);
    log::info(s.was_stopped ? "left the run: " : "the run is over: ", s.groups, " groups passed on",
              s.late > 0 ? join_text("; ", s.late, " were of no use: too late, or filtered") : std::string(),
              s.lost > 0 ? join_text("; ", s.lost, " went with a worker, and were generated anew") : std::string());
  }

  worker::JoinRequest request_;
  worker::RelayRequest relay_;
  std::vector<CLI::Option*> generates_;  // of no use to a relay
  std::string token_;
};

}  // namespace

std::unique_ptr<Command> rollout_command() { return std::make_unique<Rollout>(); }

}  // namespace tandem::cli
