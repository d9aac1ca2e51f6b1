// SPDX-License-Identifier: Apache-2.0
// hostile_worker ADDRESS TOKEN_FILE KIND [OTHER]: joins a run by its own protocol, and does what no worker does. It says what it heard, and
// ends with 0 once it is refused. "listen" does nothing but say which right answer it was told. OTHER: the number of the worker that it
// speaks as.
#include <cmath>
#include <cstdio>
#include <random>
#include <string>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/json_file.h"
#include "tandem/queue/backend/wire/store_server.h"
#include "tandem/queue/backend/wire/transport.h"
#include "tandem/queue/caller.h"

namespace tandem::queue {
namespace {

constexpr double kAnswerS = 10, kPatienceS = 60;
constexpr int64_t kMuch = 64 << 20;

class Hostile {
 public:
  Hostile(const std::string& address, const std::string& token, std::string kind)
      : kind_(std::move(kind)),
        keys_(comm::make_keys()),
        store_(body_fields()),
        server_(store_, "tcp://127.0.0.1:0"),
        much_(comm::Endpoint::at("tcp://127.0.0.1:0", keys_)),
        line_(comm::Endpoint::to(address, token)),
        caller_({kind_ == "much" ? much_.address() + " " + keys_.public_key : server_.place(), "", "cpu"}, std::random_device()(),
                {std::random_device()(), 1}) {}

  // Until it is refused. False if it is not.
  bool work(int64_t other) {
    const Answer joined = say(caller_.begin_join());
    group_size_ = std::get<answer::Joined>(joined.what).group_size;
    if (kind_ == "other") return speak_as(joined, other);
    for (const Deadline patience = Deadline::after_s(kPatienceS); !patience.passed();) {
      if (kind_ == "much") give_much();
      const Answer answer = say(caller_.begin(call::LeaseGroups{1, version_, 1, kind_ == "weights" ? 12345 : 0}));
      version_ = answer.version;
      if (is_refused(answer)) return true;
      const auto* leased = std::get_if<answer::Leased>(&answer.what);
      if (!leased || leased->leases.empty()) continue;
      if (kind_ == "listen") {
        std::printf("the right answer: '%s'\n", leased->prompts[0].answer.c_str());
        (void)say(caller_.begin(call::Leave{}));
        return true;
      }
      if (is_refused(finish(leased->leases[0], leased->prompts[0]))) return true;
    }
    return false;
  }

 private:
  Answer say(const Call& call) {
    line_.send({{}, to_bytes(call)});
    for (const Deadline patience = Deadline::after_s(kAnswerS); !patience.passed();) {
      const std::optional<comm::Letter> letter = line_.receive(0.05);
      if (kind_ == "much") give_much();
      if (!letter) continue;
      const Answer answer = answer_of(letter->bytes);
      if (caller_.take(answer)) return answer;
    }
    throw PeerError("no answer");
  }
  static bool is_refused(const Answer& answer) {
    if (const auto* refused = std::get_if<answer::Refused>(&answer.what)) std::printf("refused: %s\n", refused->why.c_str());
    return std::holds_alternative<answer::Refused>(answer.what);
  }

  // With its own key, or with that of nobody.
  bool speak_as(const Answer& joined, int64_t other) {
    Call call{joined.incarnation, WorkerId{(value(joined.incarnation) << 32) + other}, 1'000'000, call::Leave{"it failed"}, {4, 4}};
    line_.send({{}, to_bytes(call)});
    const std::optional<comm::Letter> letter = line_.receive(kAnswerS);
    return letter && is_refused(answer_of(letter->bytes));
  }

  Answer finish(const Lease& lease, const data::Prompt& prompt) {
    data::Group group{lease.group, {}, version_, std::vector<data::Sample>(static_cast<size_t>(group_size_))};
    group.prompt.ids = prompt.ids;
    for (int64_t i = 0; i < group_size_; ++i) {
      data::Sample& sample = group.samples[static_cast<size_t>(i)];
      sample.id = data::sample_id(lease.group, group_size_, i);
      sample.ids = {5, 6}, sample.logprobs = {-1, -1}, sample.versions = {value(version_), value(version_)}, sample.text = "ab";
      sample.scored = true, sample.score = 1, sample.parts = {{"regex", 1}};
    }
    data::Sample& first = group.samples.front();
    if (kind_ == "nan") first.logprobs[1] = std::nanf("");
    if (kind_ == "score") first.score = std::nan("");
    if (kind_ == "parts")
      for (int64_t i = 0; i < 1'000'000; ++i) first.parts.emplace_back("part " + std::to_string(i), 0);
    if (kind_ == "positive") {
      first.logprobs[0] = 0.5;
      const std::vector<Known> from(group.samples.size());
      return say(caller_.begin(call::Beat{version_, {{lease.group, lease.number, true, true}}, {}, {group}, from}));
    }
    const std::span<const data::Group> one(&group, 1);
    data::Fields columns = data::fields_of(one);
    std::vector<int64_t> measures = measures_of(one, columns);
    store_.put(data::ids_of(one), std::move(columns));
    data::Group head = group;
    for (data::Sample& sample : head.samples) sample.logprobs.clear(), sample.ids.clear(), sample.versions.clear(), sample.text.clear();
    head.prompt = {};
    return say(caller_.begin(call::Put{{lease.number}, {std::move(head)}, std::move(measures)}));
  }

  // To whoever asks for rows.
  void give_much() {
    std::optional<comm::Letter> letter = much_.receive(0);
    if (!letter) return;
    letter->bytes.assign(static_cast<size_t>(kMuch), std::byte{1});
    much_.send(*letter);
  }

  const std::string kind_;
  const comm::ServerKeys keys_;
  Store store_;
  wire::StoreServer server_;
  comm::Endpoint much_, line_;
  Caller caller_;
  PolicyVersion version_{0};
  int64_t group_size_ = 0;
};

}  // namespace
}  // namespace tandem::queue

int main(int argc, char** argv) {
  using namespace tandem;
  if (argc < 4) return 2;
  std::string token = read_file(argv[2]);
  while (!token.empty() && token.back() == '\n') token.pop_back();
  try {
    return queue::Hostile(std::string("tcp://") + argv[1], token, argv[3]).work(argc > 4 ? std::stoll(argv[4]) : 0) ? 0 : 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 3;
  }
}
