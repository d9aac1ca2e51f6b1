// SPDX-License-Identifier: Apache-2.0
// The built program, as a user sees it: exit codes, the one error line, what stands on standard output.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "tandem/policy/start_model.h"
#include "tandem/text/tokenizer_files.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string read(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

struct Outcome {
  int code;
  std::string out, err;
  std::string last_error() const { return lines_of(err).empty() ? "" : lines_of(err).back(); }
};

class Program : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("tandem_program_test_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return path(name);
  }

  /// A random model with a context of 32 tokens.
  std::string model(const std::string& name = "model") const {
    config::ModelOptions options;
    options.init_hidden = 16;
    options.init_layers = 1;
    options.init_heads = 2;
    options.init_kv_heads = 1;
    options.init_intermediate = 32;
    options.init_max_positions = 32;
    policy::write_random_model(path(name), options, 1);
    return path(name);
  }

  Outcome run(const std::string& arguments, const std::string& input = "") const {
    write("in", input);
    const std::string command = "cd " + path("") + " && " TANDEM_BUILD_DIR "/tandem " + arguments + " <in >out 2>err";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(folder_ / "out"), read(folder_ / "err")};
  }

  /// The program refuses with exit code 2 and one line that has every part in this order.
  void refuses(const std::string& arguments, const std::vector<std::string>& parts, const std::string& input = "") const {
    SCOPED_TRACE(arguments);
    const Outcome o = run(arguments, input);
    EXPECT_EQ(o.code, 2) << o.err;
    EXPECT_TRUE(o.last_error().starts_with("tandem: error: ")) << o.err;
    EXPECT_TRUE(o.last_error().ends_with(")")) << "says no remedy: " << o.err;
    size_t at = 0;
    for (const std::string& part : parts) {
      at = o.last_error().find(part, at);
      ASSERT_NE(at, std::string::npos) << "no `" << part << "` in: " << o.err;
    }
  }

  const std::string quickstart_ = TANDEM_SOURCE_DIR "/configs/quickstart.yaml";
  fs::path folder_;
};

TEST_F(Program, HelpTeachesWithExamplesAndIsNoError) {
  for (const char* command : {"", "run", "sft", "eval", "generate", "talk", "logprobs", "tokenize", "detokenize", "grade", "config",
                              "doctor", "board", "bench", "bench grpo_step", "bench generate", "bench train_step"}) {
    const Outcome o = run(std::string(command) + " --help");
    EXPECT_EQ(o.code, 0) << command << o.err;
    EXPECT_NE(o.out.find("Example"), std::string::npos) << command;
  }
}

TEST_F(Program, ConfigSaysWhatEachStageWillHoldAndRefusesWhatDoesNotFit) {
  fs::create_directories(path("sizes"));
  fs::copy_file(TANDEM_SOURCE_DIR "/tests/fixtures/config/qwen2.5-0.5b.json", path("sizes/config.json"));
  const std::string asked = std::string("config " TANDEM_SOURCE_DIR "/configs/gsm8k_grpo.yaml --memory --set data.max_prompt_tokens=512");
  const Outcome o = run(asked + " --model sizes");
  EXPECT_EQ(o.code, 0) << o.err;
  for (const char* part : {"rollout: ", "reference: ", "train: ", "switch: ", " MiB = ", "weights 942", "host: 0 MiB"})
    EXPECT_NE(o.out.find(part), std::string::npos) << part << " in " << o.out;
  refuses(asked + " --model sizes --set memory.device_mib=8000", {"memory.device_mib", "is 8000", "gradients", "train.recompute"});
  refuses(asked, {"model.path", "--model DIR"});
  refuses(asked + " --model sizes --set data.max_prompt_tokens=0", {"data.max_prompt_tokens is 0"});
}

TEST_F(Program, AnUnknownNameIsAnsweredWithTheNearest) {
  refuses("run " + quickstart_ + " --stepz 3", {"tandem run: ", "unknown option --stepz", "--steps"});
  refuses("run " + quickstart_ + " --lr 1e-5", {"tandem run: ", "unknown option --lr", "--set train.lr=", "--set supervised.lr="});
  refuses("config " + quickstart_ + " --group-size=4", {"unknown option --group-size", "--set schedule.group_size="});
  refuses("rnu " + quickstart_, {"unknown command rnu", "run"});
  refuses("bench generat", {"tandem bench: ", "unknown command generat", "generate"});
  refuses("run " + quickstart_ + " --set train.lrr=1", {"train.lrr", "train.lr"});
  refuses("grade --rule numbr", {"numbr", "number"});
  refuses("run " + quickstart_ + " extra", {"unexpected argument extra"});
  refuses("", {"tandem: names no command"});
}

TEST_F(Program, AWrongValueIsAnsweredWithWhatWouldBeRight) {
  refuses("run " + quickstart_ + " --steps many", {"--steps", "'many'", "an integer"});
  refuses("generate --model m --n many", {"--n", "many", "an integer"});
  refuses("generate --model m --n 0", {"--n", "0", "at least 1"});
  refuses("generate --model m --top-p 7", {"--top-p", "7", "between"});
  refuses("generate", {"--model", "required"});
  refuses("generate --model m --device tpu", {"--device", "tpu", "cpu"});
  refuses("run " + write("list.yaml", "train:\n  lr: [1, 2]\n"), {"list.yaml:2", "train.lr", "a number"});
}

TEST_F(Program, ARecipeOfTheProgramIsNamedWithoutAFile) {
  const std::string by_file = run("config " + quickstart_).out;
  EXPECT_NE(by_file, run("config").out);
  EXPECT_EQ(run("config quickstart").out, by_file);
  EXPECT_EQ(run("config quickstart.yaml").out, by_file);
  write("quickstart", "run: {steps: 7}\n");  // a file comes first
  EXPECT_NE(run("config quickstart").out, by_file);
}

TEST_F(Program, MissingAndBrokenFilesAreNamed) {
  refuses("run nowhere.yaml", {"nowhere.yaml", "no such recipe", "in the program: ", "quickstart"});
  refuses("generate --model nowhere", {"nowhere"});
  fs::create_directories(folder_ / "run/checkpoint/latest");
  fs::create_symlink(model(), folder_ / "run/checkpoint/latest/hf");
  refuses("generate --model run", {"run: is not the directory of a model", "run/checkpoint/latest/hf"});
  refuses("eval --reward number --data synthetic --max-new-tokens 40 --model " + model(),
          {"40 new ones (--max-new-tokens)", "context of 32"});
  refuses("tokenize --model " + model(), {"no token can express `W`", "0123456789"}, "{\"text\": \"W\"}\n");
  refuses("generate --model " + model() + " --input nowhere.jsonl", {"nowhere.jsonl", "cannot be read"});
  refuses("board nowhere", {"nowhere"});
  refuses("bench train_step --model " + path("model") + " --lengths " + write("lengths.json", "[3, -1]"), {"lengths.json", "-1"});

  const std::string weights = model("cut") + "/model.safetensors";
  fs::resize_file(weights, fs::file_size(weights) / 2);
  refuses("logprobs --model cut", {"cut/model.safetensors"}, "{\"ids\": [1, 2]}\n");

  json config = json::parse(read(model("reshaped") + "/config.json"));
  config["intermediate_size"] = 40;
  write("reshaped/config.json", config.dump());
  refuses("logprobs --model reshaped", {"reshaped", "shape"}, "{\"ids\": [1, 2]}\n");
}

TEST_F(Program, AModelThatDoesNotFitIsNoBugOfOurs) {
  json config = json::parse(read(model("vast") + "/config.json"));
  // The table of rotations alone takes 2^48 bytes, more than any process can address.
  config["num_attention_heads"] = config["num_key_value_heads"] = 1;
  config["head_dim"] = 1 << 22;
  config["max_position_embeddings"] = 1 << 24;
  write("vast/config.json", config.dump());
  const Outcome o = run("logprobs --model vast", "{\"ids\": [1, 2]}\n");
  EXPECT_EQ(o.code, 3) << o.err;
  EXPECT_TRUE(o.last_error().starts_with("tandem: error: memory: ")) << o.err;
}

TEST_F(Program, AWrongLineIsNamedByItsNumber) {
  const std::string good = "{\"prompt_ids\": [1, 2]}\n", generate = "generate --max-new-tokens 2 --model " + model();
  refuses(generate, {"stdin:2: ", "not a JSON object"}, good + "nonsense\n");
  refuses(generate, {"stdin:2: ", "token id 99999", "0 to "}, good + "{\"prompt_ids\": [99999]}\n");
  refuses(generate, {"stdin:2: ", "no token id"}, good + "{\"prompt_ids\": [-1]}\n");
  refuses(generate, {"stdin:1: ", "empty"}, "{\"prompt_ids\": []}\n");
  const std::string hello = "{\"messages\": [{\"role\": \"user\", \"content\": \"1\"}]}\n";
  refuses(generate, {"stdin:1: ", "chat template", "texts in place of messages", "--chat-template"}, hello);
  refuses(generate, {"stdin:1: ", "messages", "expected a list"}, "{\"messages\": 5}\n");
  refuses(generate, {"stdin:1: ", "messages", "role", "in each message"}, "{\"messages\": [{\"content\": \"1\"}]}\n");
  json ids = json::array();
  for (int i = 0; i < 40; ++i) ids.push_back(1);
  refuses(generate, {"stdin:1: ", "40 tokens", "context is 32", "at most 31"}, json{{"prompt_ids", ids}}.dump() + "\n");
  refuses("generate --max-new-tokens 40 --model model", {"stdin:1: ", "2 tokens and 40 new ones", "context is 32"}, good);
  refuses("logprobs --model model", {"stdin:1: ", "40 tokens", "at most 32"}, json{{"ids", ids}}.dump() + "\n");
}

TEST_F(Program, ARunRefusesWhatItCannotUse) {
  const std::string run = "run " + quickstart_ + " --no-eval --steps 1 --model " + model();
  refuses(run + " --run-dir a --set data.train=" + write("empty.jsonl", ""), {"empty.jsonl", "no rows"});
  fs::create_directories(folder_ / "taken");
  write("taken/metrics.jsonl", "");
  refuses(run + " --run-dir taken", {"taken", "is not the folder of a run", "another --run-dir"});
  write("taken/config.yaml", "");
  refuses(run + " --run-dir taken", {"taken", "exists", "--resume"});
  refuses(run + " --run-dir in", {"in: ", "is no folder", "another --run-dir"});
  refuses(run + " --run-dir in/side", {"in/side"});
  refuses("board model", {"model: is not", "no config.yaml", "the folder of a run"});
  fs::create_directories(folder_ / "runs/one");
  write("runs/one/config.yaml", "");
  refuses("board runs", {"runs", "no config.yaml", "runs/one"});
  refuses(run + " --run-dir b --set reward.rule=numbr", {"numbr", "number"});
}

TEST_F(Program, GenerateAnswersInInputOrder) {
  const std::string input = "{\"prompt_ids\": [1, 2, 3]}\n\n{\"prompt\": \"12+3=\"}\n";
  const Outcome o = run("generate --n 2 --max-new-tokens 5 --ignore-eos --logprobs --model " + model(), input);
  ASSERT_EQ(o.code, 0) << o.err;
  const std::vector<std::string> lines = lines_of(o.out);
  ASSERT_EQ(lines.size(), 2);
  const json first = json::parse(lines[0]);
  EXPECT_EQ(first["prompt_ids"], json({1, 2, 3}));
  ASSERT_EQ(first["completions"].size(), 2);
  for (const json& c : first["completions"]) {
    EXPECT_EQ(c["ids"].size(), 5);
    EXPECT_EQ(c["logprobs"].size(), 5);
    EXPECT_EQ(c["finish_reason"], "length");
    EXPECT_TRUE(c["text"].is_string());
  }
  EXPECT_EQ(json::parse(lines[1])["prompt_ids"].size(), 5);
  EXPECT_TRUE(o.last_error().ends_with(" tokens/s")) << o.err;
}

TEST_F(Program, ALengthNobodyAskedForGivesWayToAShortContext) {
  const Outcome o = run("generate --ignore-eos --model " + model(), "{\"prompt_ids\": [1, 2, 3]}\n");
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(json::parse(o.out)["completions"][0]["ids"].size(), 29);
}

TEST_F(Program, ALongPromptShortensNoAnswerButItsOwn) {
  json ids = json::array();
  for (int i = 0; i < 30; ++i) ids.push_back(1 + i % 5);
  const std::string input = "{\"prompt_ids\": [1, 2, 3]}\n" + json{{"prompt_ids", ids}}.dump() + "\n{\"prompt_ids\": [4, 5, 6, 7]}\n";
  const Outcome o = run("generate --ignore-eos --model " + model(), input);
  ASSERT_EQ(o.code, 0) << o.err;
  std::vector<size_t> lengths;
  for (const std::string& line : lines_of(o.out)) lengths.push_back(json::parse(line)["completions"][0]["ids"].size());
  EXPECT_EQ(lengths, (std::vector<size_t>{29, 2, 28}));
}

TEST_F(Program, MessagesBecomeTheTextOfTheModelsTemplate) {
  text::write_char_tokenizer(model("chat"), "\nadeimnorstuy1+", {"<|im_start|>", "<|im_end|>", "<eos>"});
  const std::string config = path("chat/tokenizer_config.json");
  json tokenizer = json::parse(read(config));
  tokenizer["chat_template"] =
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
      "{% if add_generation_prompt %}{{'<|im_start|>assistant\\n'}}{% endif %}";
  write("chat/tokenizer_config.json", tokenizer.dump());
  const Outcome o = run("generate --max-new-tokens 1 --model chat", "{\"messages\": [{\"role\": \"user\", \"content\": \"1+1\"}]}\n");
  ASSERT_EQ(o.code, 0) << o.err;
  // <|im_start|> u s e r \n 1 + 1 <|im_end|> \n <|im_start|> a s s i s t a n t \n
  EXPECT_EQ(json::parse(o.out)["prompt_ids"],
            json({0, 14, 12, 6, 11, 3, 16, 17, 16, 1, 3, 0, 4, 12, 12, 7, 12, 13, 4, 9, 13, 3}));
}

TEST_F(Program, PackedWeightsCanBeTurnedOff) {
  const std::string prompt = "{\"prompt_ids\": [1, 2, 3]}\n";
  const std::string generate = "generate --max-new-tokens 4 --temperature 0 --ignore-eos --model " + model();
  const Outcome packed = run(generate, prompt), plain = run(generate + " --no-packed-weights", prompt);
  ASSERT_EQ(plain.code, 0) << plain.err;
  EXPECT_EQ(packed.out, plain.out);
}

TEST_F(Program, OptionsThatWouldMeanNothingDoNotExist) {
  for (const char* flag : {"--schedule sync", "--staleness 1", "--rollout-layout dp1", "--replay x"})
    refuses("sft " + quickstart_ + " " + flag, {"unknown option"});
  refuses("logprobs --model m --max-running 5", {"unknown option --max-running"});
  refuses("eval --model m --reward number --data synthetic --set data.digits=2", {"--set", "--config"});
  refuses("eval --model m --data synthetic", {"--reward", "no rule", "python(python=FILE.py:score)"});
  refuses("eval --model m --data synthetic --set reward.python=a.py:f", {"--set", "no recipe", "python(python=FILE.py:score)"});
  refuses("grade --rule a.py:f", {"`a.py:f` is a file", "python(python="});
  refuses("eval --model m --reward number", {"--data", "is missing", "data.eval"});
}

TEST_F(Program, EvalWithTheRecipeRepeatsTheEvaluationOfTheRun) {
  const std::string recipe =
      "model: {init_hidden: 48, init_layers: 2, init_heads: 2, init_kv_heads: 1, init_intermediate: 96, init_deviation: 0.1}\n"
      "data: {digits: 2, reversed: true, eval: synthetic, synthetic_eval_rows: 60}\nreward: {rule: exact}\n"
      "supervised: {steps: 150, batch_size: 128, lr: 5e-3, beta2: 0.95, accuracy_problems: 20, accuracy_every_steps: 50}\n"
      "schedule: {groups_per_step: 4, group_size: 2}\nrollout: {max_new_tokens: 4}\neval: {max_new_tokens: 4}\n";
  const Outcome trained = run("run " + write("small.yaml", recipe) + " --steps 1 --run-dir trained --threads 1");
  ASSERT_EQ(trained.code, 0) << trained.err;
  const double accuracy = json::parse(read(path("trained/summary.json")))["eval_after"]["accuracy"];
  EXPECT_GT(accuracy, 0);  // else the next comparison says nothing
  EXPECT_LT(accuracy, 1);
  const Outcome o = run("eval --config small.yaml --model trained/checkpoint/latest/hf");
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(lines_of(o.out).size(), 61);
  EXPECT_EQ(json::parse(lines_of(o.out).back())["accuracy"], accuracy);
  // The resolved recipe says the same, and what stands beside it refines it.
  const Outcome fewer =
      run("eval --config trained/config.yaml --set data.digits=1 --max-problems 5 --n 2 --model trained/checkpoint/latest/hf");
  ASSERT_EQ(fewer.code, 0) << fewer.err;
  EXPECT_EQ(lines_of(fewer.out).size(), 11);
  EXPECT_EQ(json::parse(lines_of(fewer.out)[0])["prompt"].get<std::string>().size(), 4);  // 1+2=
}

TEST_F(Program, TheVersionNamesCommitAndLibtorch) {
  const Outcome o = run("--version");
  EXPECT_EQ(o.code, 0) << o.err;
  const std::regex line(R"(tandem \d+\.\d+\.\d+, commit ([0-9a-f]{7,}(-dirty)?|unknown), libtorch \d+\.\d+\.\d+\S*\n)");
  EXPECT_TRUE(std::regex_match(o.out, line)) << o.out;
  const json doctor = json::parse(run("doctor --json").out);
  EXPECT_NE(o.out.find(", libtorch " + doctor["libtorch"].get<std::string>()), std::string::npos) << o.out;
}

TEST_F(Program, OfTwoEqualFlagsTheLastCounts) {
  const std::string generate = "generate --ignore-eos --model " + model(), prompt = "{\"prompt_ids\": [1, 2, 3]}\n";
  const auto length = [&](const std::string& flags) {
    const Outcome o = run(generate + " " + flags, prompt);
    EXPECT_EQ(o.code, 0) << flags << o.err;
    return o.code == 0 ? json::parse(o.out)["completions"][0]["ids"].size() : 0;
  };
  EXPECT_EQ(length("--max-new-tokens 3 --max-new-tokens 5"), 5);
  EXPECT_EQ(length("--max-new-tokens 5 --max-new-tokens=3 --logprobs --logprobs --threads 1 --threads 1"), 3);
  EXPECT_EQ(length("--max-new-tokens 3 --packed-weights --no-packed-weights --packed-weights"), 3);
  const Outcome both = run("eval --data synthetic --data synthetic --reward number --model model");
  EXPECT_EQ(both.code, 2) << "sets are no flags: two of them must have names";
  EXPECT_NE(both.err.find("data.eval"), std::string::npos) << both.err;
  write("a.yaml", "run: {steps: 3}\n");
  const std::string recipe = run("config a.yaml --steps 5 --steps 6 --set run.seed=1 --seed 2").out;
  EXPECT_NE(recipe.find("  steps: 6 "), std::string::npos) << recipe;
  EXPECT_NE(recipe.find("  seed: 2 "), std::string::npos) << recipe;
}

TEST_F(Program, HelpShowsTheWordsThatAnOptionTakes) {
  EXPECT_NE(run("generate --help").out.find("--dtype float32|bfloat16"), std::string::npos);
  EXPECT_NE(run("bench generate --help").out.find("--mode fixed|ragged"), std::string::npos);
  EXPECT_NE(run("sft --help").out.find("--device auto|cpu|cuda|npu"), std::string::npos);
  refuses("generate --model m --dtype int8", {"--dtype", "int8", "float32 bfloat16"});
  for (const char* help : {"grade --help", "eval --help"}) EXPECT_NE(run(help).out.find("think_format"), std::string::npos) << help;
  refuses("grade --rule numbr", {"numbr", "number", "one of", "exact", "math", "code", "model"});
}

TEST_F(Program, NoInputIsNoError) {
  const Outcome o = run("generate --model " + model());
  EXPECT_EQ(o.code, 0);
  EXPECT_EQ(o.out, "");
  EXPECT_EQ(o.last_error(), "0.0 tokens/s");
}

TEST_F(Program, GeneratedLogprobsAreThoseOfTheLogprobsCommand) {
  const Outcome generated = run("generate --max-new-tokens 8 --ignore-eos --logprobs --model " + model(), "{\"prompt_ids\": [1, 2, 3]}\n");
  ASSERT_EQ(generated.code, 0) << generated.err;
  const json completion = json::parse(generated.out)["completions"][0];
  json ids = {1, 2, 3};
  for (const json& id : completion["ids"]) ids.push_back(id);
  const Outcome given = run("logprobs --model model", json{{"ids", ids}}.dump() + "\n{\"ids\": [1]}\n");
  ASSERT_EQ(given.code, 0) << given.err;
  const json logprobs = json::parse(lines_of(given.out).at(0))["logprobs"];
  ASSERT_EQ(logprobs.size(), 10);
  for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(logprobs[i + 2].get<double>(), completion["logprobs"][i].get<double>(), 1e-4);
  EXPECT_EQ(lines_of(given.out).at(1), "{\"logprobs\":[]}");
}

TEST_F(Program, WithoutLogprobsThereIsNoSuchField) {
  const Outcome o = run("generate --max-new-tokens 2 --model " + model(), "{\"prompt_ids\": [1]}\n");
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_FALSE(json::parse(o.out)["completions"][0].contains("logprobs"));
}

TEST_F(Program, EvalGivesARowPerAnswerAndASummary) {
  const std::string data =
      write("problems.jsonl", "{\"question\": \"1+2=\", \"answer\": \"3\"}\n{\"question\": \"4+4=\", \"answer\": 8}\n");
  const Outcome o = run("eval --n 3 --temperature 1 --max-new-tokens 2 --reward number --data " + data + " --model " + model());
  ASSERT_EQ(o.code, 0) << o.err;
  const std::vector<std::string> lines = lines_of(o.out);
  ASSERT_EQ(lines.size(), 7);
  const json last = json::parse(lines.back());
  EXPECT_EQ(last["num_problems"], 2);
  for (const char* name : {"accuracy", "pass_at_k", "tokens_per_s"}) EXPECT_TRUE(last[name].is_number()) << name;
  EXPECT_EQ(json::parse(lines[3])["gold"], "8");
}

TEST_F(Program, EvalTakesAsManySyntheticProblemsAsAsked) {
  const Outcome o = run("eval --max-problems 3 --max-new-tokens 2 --reward number --data synthetic --model " + model());
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(lines_of(o.out).size(), 4);
}

TEST_F(Program, ConfigShowsChecksAndResolves) {
  EXPECT_NE(run("config").out.find("`schedule.staleness`"), std::string::npos);
  EXPECT_EQ(run("config --check " + quickstart_).out, "");
  const Outcome resolved = run("config " + quickstart_ + " --set train.lr=0.5");
  EXPECT_EQ(resolved.code, 0);
  EXPECT_NE(resolved.out.find("lr: 0.5"), std::string::npos);
  refuses("config --check " + write("bad.yaml", "run:\n  stepz: 3\n"), {"bad.yaml:2", "run.stepz", "run.steps"});
}

TEST_F(Program, PlanReshardCountsTheBytesOfASwitch) {
  const std::string plan = "plan reshard --dtype float32 --model " + model() + "/config.json ";
  const Outcome o = run(plan + "--from dp2 --to tp2");
  ASSERT_EQ(o.code, 0) << o.err;
  const json cut = json::parse(o.out);
  EXPECT_EQ(cut["ranks"], 2);
  EXPECT_EQ(cut["bytes_total"], 0) << "each rank keeps a part of what it has";
  EXPECT_FALSE(cut.contains("experts"));
  const Outcome back = run(plan + "--from tp2 --to '2x(dp1)' --ranks-per-node 1");
  ASSERT_EQ(back.code, 0) << back.err;
  const json whole = json::parse(back.out);
  EXPECT_GT(whole["bytes_total"], 0);
  for (const char* same : {"lower_bound_bytes", "bytes_across_nodes", "lower_bound_across_nodes_bytes"})
    EXPECT_EQ(whole[same], whole["bytes_total"]) << same;
  EXPECT_EQ(whole["dense"]["bytes_total"], whole["bytes_total"]);
  EXPECT_EQ(whole["bytes_sent_max"].get<double>(), whole["bytes_sent_mean"].get<double>());
}

TEST_F(Program, PlanReshardRefusesLayoutsThatCannotBe) {
  const std::string plan = "plan reshard --model " + model() + "/config.json ";
  refuses(plan + "--from dp2 --to tp4", {"--to", "heads"});
  refuses(plan + "--from dp2 --to dp3", {"--to", "3 ranks", "2", "as many ranks"});
  refuses(plan + "--from '2x(dp2' --to dp4", {"--from", "2x(dp2", "replicas"});
  refuses("plan reshard --from dp2 --to tp2 --model " + write("bad.json", "{"), {"bad.json", "not JSON"});
  refuses("plan reshard --from dp2 --to tp2 --model " + path("absent"), {"absent"});
  refuses("plan", {"tandem plan", "names no command"});
}

TEST_F(Program, DoctorNamesTheProcessor) {
  const Outcome o = run("doctor --json");
  ASSERT_EQ(o.code, 0) << o.err;
  const json report = json::parse(o.out);
  EXPECT_GT(report["cores"], 0);
  EXPECT_GT(report["memory_bytes"], 0);
  EXPECT_FALSE(report["isa"].get<std::string>().empty());
  EXPECT_EQ(report["missing"].contains("c10d"), report["c10d"] == "") << "either a backend between devices, or how to get one";
  EXPECT_FALSE(report["missing"].contains("network")) << "no interface was asked for";
}

TEST_F(Program, DoctorNamesAnInterfaceThatIsNotThere) {
  ::setenv("TANDEM_INTERFACE", "absent0", 1);
  const Outcome o = run("doctor");
  ::unsetenv("TANDEM_INTERFACE");
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("ranks meet over absent0"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("missing   network: TANDEM_INTERFACE: no address of this machine is of `absent0`"), std::string::npos) << o.out;
}

}  // namespace
}  // namespace tandem::cli
