// SPDX-License-Identifier: Apache-2.0
// A queue whose door stands open to others than its clients: forty of them, who have no token, or a wrong one, send what is no message, too
// much, the same again, or nothing, or never read. The job beside them goes on.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <thread>

#include "tandem/base/clock.h"
#include "tandem/base/rng.h"
#include "tandem/queue/backend/wire/server.h"
#include "tandem/queue/backend/wire/transport.h"
#include "tandem/queue/body/store.h"

namespace tandem::queue {
namespace {

constexpr int64_t kSteps = 40, kGroupsPerStep = 4, kGroupSize = 2;
constexpr double kDeadlineS = 30;
constexpr int kOfEachKind = 5;
constexpr int64_t kNobody = 1'000'000;  // who has the token may speak for any client that there is

/// What an intruder does until the job is over.
using Intruder =
    std::function<void(const std::string& address, const std::string& token, RandomStream& random, const std::atomic<bool>& over)>;

std::vector<std::byte> noise(RandomStream& random, int64_t bytes) {
  std::vector<std::byte> made(static_cast<size_t>(bytes));
  for (std::byte& each : made) each = static_cast<std::byte>(random.below(256));
  return made;
}

/// A socket below ZeroMQ.
class RawLine {
 public:
  explicit RawLine(const std::string& address) : line_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_open_ = ::connect(line_, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0;
  }
  ~RawLine() { ::close(line_); }
  bool send(std::span<const std::byte> bytes) {
    return is_open_ = is_open_ && ::send(line_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
  }

 private:
  int line_;
  bool is_open_ = false;
};

void rest(int64_t ms = 5) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// As ZeroMQ greets, with a mechanism of its own or without one.
std::vector<std::byte> greeting(const char* mechanism) {
  std::vector<std::byte> bytes(64, std::byte{0});
  bytes[0] = std::byte{0xff}, bytes[8] = std::byte{1}, bytes[9] = std::byte{0x7f}, bytes[10] = std::byte{3};
  std::memcpy(bytes.data() + 12, mechanism, std::strlen(mechanism));
  return bytes;
}

void send_noise(const std::string& address, const std::string&, RandomStream& random, const std::atomic<bool>& over) {
  while (!over) {
    RawLine line(address);
    for (int i = 0; i < 20 && !over && line.send(noise(random, 1000)); ++i) rest();
    rest();
  }
}
// A frame of so many bytes that nobody has them.
void announce_too_much(const std::string& address, const std::string&, RandomStream& random, const std::atomic<bool>& over) {
  while (!over) {
    RawLine line(address);
    std::vector<std::byte> bytes = greeting(random.below(2) == 0 ? "NULL" : "CURVE");
    bytes.resize(bytes.size() + 9, std::byte{0x7f});
    bytes[64] = std::byte{random.below(2) == 0 ? uint8_t{2} : uint8_t{6}};
    while (!over && line.send(bytes)) rest(), bytes = noise(random, 5000);
    rest();
  }
}
void say_nothing(const std::string& address, const std::string&, RandomStream& random, const std::atomic<bool>& over) {
  RawLine line(address);
  const std::vector<std::byte> hello = greeting("CURVE");
  if (random.below(2) == 0) line.send(std::span(hello).first(20));
  while (!over) rest();
}
void call_without(const std::string& address, const std::string& token, RandomStream&, const std::atomic<bool>& over) {
  comm::Endpoint line = comm::Endpoint::to(address, token);
  for (int64_t number = 1; !over; ++number) {
    line.send({{}, to_bytes(Call{Incarnation{0}, WorkerId{0}, number, call::LeaseGroups{4, PolicyVersion{0}}})});
    EXPECT_FALSE(line.receive(0.005));
  }
}
// As one of a version that had none: it greets, and calls.
void have_no_token(const std::string& address, const std::string&, RandomStream& random, const std::atomic<bool>& over) {
  while (!over) {
    RawLine line(address);
    line.send(greeting("NULL"));
    for (int i = 0; i < 20 && !over && line.send(noise(random, 100)); ++i) rest();
    rest();
  }
}
void have_a_wrong_token(const std::string& address, const std::string&, RandomStream& random, const std::atomic<bool>& over) {
  call_without(address, comm::make_keys().public_key, random, over);
}
// Some bytes of a real call, and others.
void send_what_is_no_call(const std::string& address, const std::string& token, RandomStream& random, const std::atomic<bool>& over) {
  comm::Endpoint line = comm::Endpoint::to(address, token);
  while (!over) {
    const WorkerId nobody{kNobody + random.below(9)};
    std::vector<std::byte> bytes = to_bytes(Call{Incarnation{0}, nobody, random.below(99), call::Beat{{}, {{}}, {{}}, {}}});
    if (random.below(3) == 0) bytes.resize(static_cast<size_t>(random.below(std::ssize(bytes))));
    else
      for (int i = 0; i < 8; ++i)
        bytes[static_cast<size_t>(random.below(std::ssize(bytes)))] = static_cast<std::byte>(random.below(256));
    line.send({{}, std::move(bytes)});
    rest();
  }
}
// A hundred calls again and again, in any order: of its own, and of clients and incarnations that are not there.
void say_everything_again(const std::string& address, const std::string& token, RandomStream& random, const std::atomic<bool>& over) {
  comm::Endpoint line = comm::Endpoint::to(address, token);
  const int64_t join = random.below(int64_t{1} << 40);
  std::vector<std::vector<std::byte>> said;
  while (!over) {
    if (said.size() < 100) {
      said.push_back(to_bytes(Call{Incarnation{0}, WorkerId{}, join, call::Join{"nowhere"}}));
      said.push_back(to_bytes(Call{Incarnation{random.below(3)}, WorkerId{kNobody + random.below(9)}, random.below(50), call::Leave{}}));
      said.push_back(to_bytes(Call{Incarnation{0}, WorkerId{kNobody + random.below(9)}, random.below(50), call::Take{StepId{1}, {}}}));
    }
    line.send({{}, said[static_cast<size_t>(random.below(std::ssize(said)))]});
    (void)line.receive(0.002);
  }
}
void never_read(const std::string& address, const std::string& token, RandomStream& random, const std::atomic<bool>& over) {
  comm::Endpoint line = comm::Endpoint::to(address, token);
  const int64_t join = random.below(int64_t{1} << 40);
  while (!over) {
    for (int i = 0; i < 20; ++i) line.send({{}, to_bytes(Call{Incarnation{0}, WorkerId{}, join, call::Join{"nowhere"}})});
    rest();
  }
}

struct Member {
  Member(const std::string& address, const std::string& token)
      : store({{"tokens", std::vector<int64_t>()}}), transport({.address = address, .token = token, .deadline_s = kDeadlineS}, store),
        client(transport, store, {kDeadlineS}) {
    client.join();
  }
  Store store;
  wire::Transport transport;
  Client client;
};

void generate(Member& m, const std::atomic<bool>& over) {
  std::vector<GroupId> finished;
  while (!over) {
    if (!m.client.has_joined()) m.client.join(), finished.clear();
    const PolicyVersion version = m.client.newest();
    std::vector<LeaseNumber> numbers;
    std::vector<data::Group> heads;
    std::vector<int64_t> tokens;
    for (const Task& task : m.client.lease(2, version)) {
      const Lease& lease = task.lease;
      numbers.push_back(lease.number);
      data::Group& head = heads.emplace_back(data::Group{lease.group, {}, version, std::vector<data::Sample>(kGroupSize)});
      for (int64_t i = 0; i < kGroupSize; ++i) {
        head.samples[static_cast<size_t>(i)].id = data::sample_id(lease.group, kGroupSize, i);
        head.samples[static_cast<size_t>(i)].scored = true;
        tokens.push_back(value(lease.group));
      }
    }
    if (numbers.empty()) {
      rest(1);
    } else {
      data::Fields bodies;
      const std::vector<int64_t> each(tokens.size(), 1);
      bodies["tokens"] = {std::move(tokens), each};
      const std::vector<GroupId> groups = [&] {
        std::vector<GroupId> ids;
        for (const data::Group& head : heads) ids.push_back(head.id);
        return ids;
      }();
      const std::vector<bool> kept = m.client.put(numbers, std::move(heads), std::move(bodies));
      for (size_t i = 0; i < kept.size(); ++i)
        if (kept[i]) finished.push_back(groups[i]);
    }
    for (const GroupId group : m.client.evicted(version, {}, finished, {})) std::erase(finished, group);
  }
}

// All that goes on beside the test, until it ends, however it does.
struct Crowd {
  ~Crowd() { end(); }
  void end() {
    over = true;
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }
  std::atomic<bool> over = false;
  std::vector<std::thread> threads;
};

TEST(Door, FortyIntrudersLeaveTheJobUnharmed) {
  const Intruder kinds[] = {send_noise, announce_too_much, say_nothing, have_no_token, have_a_wrong_token,
                            send_what_is_no_call, say_everything_again, never_read};
  const comm::ServerKeys keys = comm::make_keys();
  std::mutex mutex;
  Controller controller({.groups_per_step = kGroupsPerStep, .group_size = kGroupSize, .staleness = 1}, {10, Incarnation{0}});
  Desk desk(controller, Incarnation{0}, "");
  {
    wire::Server server(desk, mutex, "tcp://127.0.0.1:0", keys);
    std::optional<Member> first, second;
    Crowd crowd;
    for (size_t kind = 0; kind < std::size(kinds); ++kind)
      for (size_t i = 0; i < kOfEachKind; ++i)
        crowd.threads.emplace_back([&, kind, i] {
          RandomStream random(kind, i);
          kinds[kind](server.address(), keys.public_key, random, crowd.over);
        });
    EXPECT_EQ(crowd.threads.size(), 40u);
    Member trainer(server.address(), keys.public_key);
    for (std::optional<Member>* m : {&first, &second}) {
      m->emplace(server.address(), keys.public_key);
      crowd.threads.emplace_back([m, &crowd] { generate(**m, crowd.over); });
    }
    TensorCache rows({{"tokens", std::vector<int64_t>()}});
    std::set<GroupId> trained;
    int64_t step = 0;
    for (const Deadline deadline = Deadline::after_s(60); step < kSteps && !deadline.passed();) {
      if (!trainer.client.has_joined()) trainer.client.join();
      const std::optional<data::Batch> batch = trainer.client.take(StepId{step + 1}, PolicyVersion{step});
      if (!batch || !trainer.client.read(rows)) {
        rest(1);
        continue;
      }
      for (const data::Group& head : batch->groups) {
        EXPECT_TRUE(trained.insert(head.id).second) << value(head.id);
        for (const data::Sample& sample : head.samples) EXPECT_EQ(rows.read<int64_t>(sample.id, 0)[0], value(head.id));
      }
      rows.drop(data::ids_of(batch->groups));
      ++step;
      for (const GroupId group : trainer.client.commit(StepId{step}, PolicyVersion{step})) EXPECT_FALSE(trained.contains(group));
    }
    crowd.end();
    EXPECT_EQ(step, kSteps);
    EXPECT_EQ(server.fault(), nullptr);
  }
  EXPECT_GT(desk.counters().repeated, 0);
  EXPECT_GT(desk.counters().of_another_incarnation, 0);
}

// Tokens that were reported fit into an answer, or their groups begin anew.
TEST(Door, AnAnswerHasABound) {
  constexpr int64_t kTokens = 1 << 20, kGroups = 8;
  Controller controller({.groups_per_step = kGroups, .group_size = 1, .staleness = 0}, {10, Incarnation{0}});
  Desk desk(controller, Incarnation{0}, "");
  int64_t number = 0;
  const auto joined = [&] {
    return std::get<answer::Joined>(desk.answer({{}, {}, ++number, call::Join{"store"}}, 0).value().what).worker;
  };
  const auto leased = [&](WorkerId worker) {
    return std::get<answer::Leased>(desk.answer({{}, worker, ++number, call::LeaseGroups{kGroups, {}}}, 0).value().what);
  };
  const WorkerId first = joined();
  const std::vector<Lease> leases = leased(first).leases;
  ASSERT_EQ(std::ssize(leases), kGroups);
  for (int64_t i = 0; i < kGroups; ++i) {  // a beat names all leases, and has the tokens of one
    call::Beat beat;
    for (size_t g = 0; g < leases.size(); ++g)
      beat.leases.push_back({leases[g].group, leases[g].number, true, static_cast<int64_t>(g) == i});
    data::Sample sample{.id = data::sample_id(leases[static_cast<size_t>(i)].group, 1, 0)};
    sample.ids.resize(kTokens), sample.logprobs.resize(kTokens), sample.versions.resize(kTokens);
    beat.begun.push_back({leases[static_cast<size_t>(i)].group, {}, {}, {sample}});
    beat.from.emplace_back();
    (void)desk.answer({{}, first, ++number, beat}, 0);
  }
  EXPECT_EQ(desk.counters().went_on, kGroups);
  (void)desk.answer({{}, first, ++number, call::Leave{}}, 0);
  const WorkerId second = joined();
  const answer::Leased again = leased(second);
  const auto goes_on = std::ranges::count_if(again.leases, [](const Lease& lease) { return lease.begun != kNoLease; });
  EXPECT_EQ(goes_on, std::ssize(again.begun));
  EXPECT_EQ(goes_on, (64 << 20) / (kTokens * 16));
  EXPECT_EQ(std::ssize(again.leases), kGroups);
  const Answer repeated = desk.answer({{}, second, number, call::LeaseGroups{kGroups, {}}}, 0).value();
  EXPECT_EQ(std::get<answer::Leased>(repeated.what).leases, again.leases) << "an answer whose tokens are not kept is given again with them";
  EXPECT_EQ(std::ssize(std::get<answer::Leased>(repeated.what).begun), goes_on);
}

TEST(Door, AMessageThatIsTooLongIsNotSent) {
  const comm::ServerKeys keys = comm::make_keys();
  comm::Endpoint router = comm::Endpoint::at("tcp://127.0.0.1:0", keys), line = comm::Endpoint::to(router.address(), keys.public_key);
  EXPECT_THROW(line.send({{}, std::vector<std::byte>(static_cast<size_t>(comm::kMaxRequestBytes) + 1)}), PeerError);
}

int64_t resident_bytes() {
  std::ifstream pages("/proc/self/statm");
  int64_t all = 0, resident = 0;
  pages >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// What is said to one that does not read is not kept for it.
TEST(Door, WhoDoesNotReadCostsLittle) {
  std::mutex mutex;
  Controller controller({.groups_per_step = 1, .group_size = 1, .staleness = 1}, {10, Incarnation{0}});
  constexpr int64_t kWelcome = 4 << 20;
  Desk desk(controller, Incarnation{0}, "", {}, std::string(kWelcome, 'w'));
  wire::Server server(desk, mutex, "tcp://127.0.0.1:0");
  comm::Endpoint line = comm::Endpoint::to(server.address(), server.token());
  const int64_t before = resident_bytes();
  const auto num_answered = [&] {
    const std::lock_guard lock(mutex);
    return desk.counters().answered;
  };
  for (int i = 0; i < 1000 && num_answered() < 400; ++i) {
    line.send({{}, to_bytes(Call{Incarnation{0}, WorkerId{}, 1, call::Join{"nowhere"}})});
    rest(2);
  }
  EXPECT_LT(resident_bytes() - before, 64 * kWelcome) << "of the hundreds that were asked for";
}

// A server, and what calls make of it.
struct Served {
  Served() { desk.serve_workers(true, {.group_size = 1, .prompt_tokens = 4, .response_tokens = 4}); }
  std::optional<Answer> answer_to(comm::Endpoint& line, std::vector<std::byte> bytes) {
    line.send({{}, std::move(bytes)});
    const std::optional<comm::Letter> letter = line.receive(kDeadlineS);
    return letter ? std::optional(answer_of(letter->bytes)) : std::nullopt;
  }
  std::vector<Barred> barred() {
    const std::lock_guard lock(mutex);
    return desk.take_barred();
  }
  std::mutex mutex;
  Controller controller{{.groups_per_step = 1, .group_size = 1}, {100, Incarnation{0}}};
  Desk desk{controller, Incarnation{0}, ""};
  wire::Server server{desk, mutex, "tcp://127.0.0.1:0"};
};

TEST(Door, ACallThatIsTooLongIsNotReadAndItsMakerIsNamed) {
  Served run;
  comm::Endpoint line = comm::Endpoint::to(run.server.address(), run.server.token());
  Call call{Incarnation{0}, {}, 7, call::Join{"tcp://127.0.0.1:1"}, {5, 6}};
  call.worker = std::get<answer::Joined>(run.answer_to(line, to_bytes(call)).value().what).worker;
  call.verb = call::Leave{std::string(static_cast<size_t>(run.desk.most_call_bytes()), 'x')};
  const std::optional<Answer> answer = run.answer_to(line, to_bytes(call));
  ASSERT_TRUE(answer);
  const std::string why = std::get<answer::Refused>(answer->what).why;
  EXPECT_NE(why.find("a call of"), std::string::npos) << why;
  const std::vector<Barred> barred = run.barred();
  ASSERT_EQ(barred.size(), 1u);
  EXPECT_EQ(barred[0].worker, call.worker);
  EXPECT_EQ(barred[0].host, "127.0.0.1");
}

TEST(Door, AnotherVersionOfTandemIsRefusedInWords) {
  Served run;
  comm::Endpoint line = comm::Endpoint::to(run.server.address(), run.server.token());
  std::vector<std::byte> bytes = to_bytes(Call{Incarnation{-1}, {}, 7, call::Join{"tcp://127.0.0.1:1"}});
  bytes[7] = std::byte{'2'};  // the last letter of its magic number
  const std::optional<Answer> answer = run.answer_to(line, std::move(bytes));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->number, 7);
  const std::string why = std::get<answer::Refused>(answer->what).why;
  EXPECT_NE(why.find("another version"), std::string::npos) << why;
}

TEST(Door, AWrongTokenIsSaidAtOnceAndInWords) {
  Served run;
  Store store({{"tokens", std::vector<int64_t>()}});
  wire::Transport transport({.address = run.server.address(), .token = comm::make_keys().public_key, .deadline_s = kDeadlineS}, store);
  Client client(transport, store, {kDeadlineS});
  const double begin_s = now_s();
  try {
    client.join();
    FAIL() << "it joined";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("--token"), std::string::npos) << e.what();
  }
  EXPECT_LT(now_s() - begin_s, 10);
}

TEST(Door, NobodyListensWithoutKeysOrCallsWithoutAToken) {
  EXPECT_THROW((void)comm::Endpoint::to("tcp://127.0.0.1:9", ""), UserError);
  const auto place_of = [](const Store& store) { return wire::StoreServer(store, "tcp://127.0.0.1:0").place(); };
  const std::string place = place_of(Store({{"tokens", std::vector<int64_t>()}}));
  EXPECT_EQ(place.size() - place.find(' '), 41u) << place;
}

// What a store says in answer has the bound of a message of rows, whatever it sends, and its maker is found out.
TEST(Door, AStoreThatGivesTooMuchIsCutOff) {
  constexpr int64_t kMuch = 64 << 20;
  const comm::ServerKeys keys = comm::make_keys();
  comm::Endpoint hostile = comm::Endpoint::at("tcp://127.0.0.1:0", keys);
  std::atomic<bool> over = false;
  std::thread answers([&] {
    while (!over)
      if (std::optional<comm::Letter> letter = hostile.receive(0.05)) {
        letter->bytes.assign(static_cast<size_t>(kMuch), std::byte{1});
        hostile.send(*letter);
      }
  });
  wire::StoreReader reader(kDeadlineS, 1000);
  TensorCache rows({{"tokens", std::vector<int64_t>()}});
  const double begin_s = now_s();
  const std::vector<SampleId> one = {SampleId{1}};
  EXPECT_FALSE(reader.read(hostile.address() + " " + keys.public_key, one, rows));
  EXPECT_NE(reader.fault().find("more than"), std::string::npos) << reader.fault();
  EXPECT_LT(reader.bytes_received(), kMuch);
  EXPECT_LT(now_s() - begin_s, kDeadlineS / 2);
  over = true;
  answers.join();
}

}  // namespace
}  // namespace tandem::queue
