// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "../../small_memory.h"
#include "tandem/base/error.h"
#include "tandem/text/jinja/template.h"

namespace tandem::text::jinja {
namespace {

using Json = nlohmann::ordered_json;

std::string rendered(const std::string& source, const Json& variables = Json::object(), const Limits& limits = {}) {
  return Template(source, "here", limits).render(variables);
}

std::string error_of(const std::string& source, const Json& variables = Json::object(), const Limits& limits = {}) {
  try {
    return "rendered: " + rendered(source, variables, limits);
  } catch (const UserError& e) {
    return e.what();
  }
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Expected texts by jinja2, set up as transformers does: tests/fixtures/chat/make_jinja_cases.py.
TEST(Jinja, RendersAndRefusesAsJinja2Does) {
  std::ifstream in(std::string(TANDEM_SOURCE_DIR) + "/tests/fixtures/chat/jinja.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(in, line));
  const Json variables = Json::parse(line)["variables"];
  int num_texts = 0, num_errors = 0;
  while (std::getline(in, line)) {
    const Json row = Json::parse(line);
    const std::string source = row["template"];
    if (row.contains("text")) {
      EXPECT_EQ(error_of(source, variables), "rendered: " + row["text"].get<std::string>()) << source;
      ++num_texts;
    } else {
      EXPECT_FALSE(says(error_of(source, variables), "rendered: ")) << source << "\n" << row["error"];
      ++num_errors;
    }
  }
  EXPECT_GT(num_texts, 80);
  EXPECT_GT(num_errors, 40);
}

TEST(Jinja, AnErrorNamesTheLineAndTheConstruct) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\n{% extends 'x' %}", "here:2: the statement `extends` is not supported"},
      {"\n\n{{ 1 | tojsno }}", "here:3: the filter `tojsno` is not supported; the nearest is `tojson`"},
      {"{{ 1 is strng }}", "here:1: the test `strng` is not supported; the nearest is `string`"},
      {"x\n{% if true %}\n{{ foo.bar }}{% endif %}", "here:3: 'foo' is undefined"},
      {"{% if true %}\n{% for x in [1] %}\n{% endif %}", "here:3: `endif` is not right here (expected {% endfor %})"},
      {"{{ raise_exception('No system role') }}", "the template refuses the conversation: No system role"},
      {"{{ 'x'.format(1) }}", "'str object' has no attribute 'format'"},
      {"{{ f(*args) }}", "arguments with `*` are not supported"},
  };
  for (const auto& [source, error] : cases) EXPECT_TRUE(says(error_of(source), error)) << error_of(source);
}

TEST(Jinja, TheKeysOfADictKeepTheirOrder) {
  EXPECT_EQ(rendered("{{ d | tojson }}", Json::parse(R"({"d": {"z": 1, "a": {"y": 2, "b": 3}}})")), R"({"z": 1, "a": {"y": 2, "b": 3}})");
}

TEST(Jinja, StrftimeNowWritesToday) {
  const std::string year = rendered("{{ strftime_now('%Y') }}");
  EXPECT_EQ(year.size(), 4u);
  EXPECT_GE(std::stoi(year), 2026);
  EXPECT_TRUE(says(error_of("{{ strftime_now(3) }}"), "wants a text"));
}

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

// Each would take for ever, or more memory or stack than there is.
TEST(Jinja, AHostileTemplateIsStopped) {
  const std::string thousand = "{% for a in range(1000) %}";
  const std::vector<std::string> sources = {
      repeated(thousand, 5) + "x" + repeated("{% endfor %}", 5),
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}",
      "{% set ns = namespace(l='') %}{% for i in range(100000) %}{% set ns.l = [ns.l].count %}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(1000) %}{% for x in ns.l %}{% set ns.l = [loop] %}{% endfor %}{% endfor %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
      "{% for x in [[]] recursive %}{{ loop([[]]) }}{% endfor %}",
      "{{ 'x' * 1000000000000 }}",
      "{{ [1] * 1000000000000 }}",
      "{{ range(10 ** 18) }}",
      "{{ 10 ** 19 }}",
      "{{ 9223372036854775807 + 1 }}",
      "{{ '%999999999d' | format(1) }}",
      "{{ " + repeated("(", 100000),
      "{{ " + repeated("not ", 100000) + "1 }}",
      "{{ " + repeated("-", 100000) + "1 }}",
      "{{ x" + repeated(".a", 100000) + " }}",
      "{{ 1" + repeated(" + 1", 100000) + " }}",
      "{{ 1" + repeated(" | string", 100000) + " }}",
      repeated("{% if true %}", 100000),
      repeated("[", 100000) + "{{ " + repeated("[", 100000),
  };
  Limits some;
  some.work = int64_t{1} << 28;  // the default takes some seconds each
  for (const std::string& source : sources) {
    const std::string error = error_of(source, Json::object(), some);
    EXPECT_FALSE(says(error, "rendered: ")) << source.substr(0, 100) << error.substr(0, 100);
  }
  Limits small;
  small.output_bytes = 1000;
  EXPECT_TRUE(says(error_of("{% for i in range(1001) %}x{% endfor %}", Json::object(), small), "the text is longer than 1000 bytes"));
}

// Each stays below the bound on work, and would take gigabytes: what is too large is not built, and what is kept is counted.
TEST(Jinja, ATemplateThatWouldFillTheMemoryIsStoppedBeforeItDoes) {
  std::string kept, nested;
  for (int i = 0; i < 40; ++i) {
    kept += "{% set a" + std::to_string(i) + " = 'x' * 60000000 %}";
    nested += "{% set b %}{{ 'x' * 60000000 }}";
  }
  const std::vector<std::string> sources = {
      "{{ ('a' * 1000000) | replace('', 'b' * 4000) }}",
      "{{ ('a' * 1000000) | replace('a', 'b' * 4000) }}",
      "{{ ('a' * 1000000).replace('a', 'b' * 4000) }}",
      "{{ ('x' * 60000) | list | join('b' * 70000) }}",
      "{{ ('b' * 70000).join(('x' * 60000) | list) }}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(27) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
      "{% set ns = namespace(l='x') %}{% for i in range(31) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
      "{% set ns = namespace(l='x') %}{% for i in range(31) %}{% set ns.l = ns.l ~ ns.l %}{% endfor %}",
      "{{ ([1] * 100000000) | length }}",
      "{{ [1, 2] | batch(100000000, 0) | length }}",
      "{{ ('x' * 30000000) | list | length }}",
      "{% for c in 'x' * 30000000 %}{% endfor %}",
      "{{ ('a,' * 30000000).split(',') | length }}",
      "{{ ('a ' * 30000000).split() | length }}",
      "{{ ('\n' * 60000000) | indent | length }}",
      "{{ ('\n' * 60000000).splitlines() | length }}",
      "{{ '" + repeated("%s", 60) + "' % ('x' * 60000000,) * 1 }}" + kept,
      "{% set t = 'x' * 60000000 %}{{ '" + repeated("%s", 50) + "' | format(" + repeated("t, ", 49) + "t) }}",
      "{{ range(60000000) | length }}",
      nested + repeated("{% endset %}", 40),
      "{% macro m(n) %}{{ 'x' * 60000000 }}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
  };
  for (const std::string& source : sources)
    EXPECT_EQ(test::within_memory(int64_t{1600} << 20, 100, [&] { rendered(source); }), "refused") << source.substr(0, 100);
}

TEST(Jinja, LongMessagesAreStillRendered) {
  const Json conversation = {{"messages", {{{"role", "user"}, {"content", std::string(20'000'000, 'x') + "\u00e9!"}}}}};
  const std::string source =
      "{% for m in messages %}{{ m.role + ': ' + m.content[3:] | trim | replace('!', '.') }}{{ m.content[-2:] }}{% endfor %}";
  const std::string text = rendered(source, conversation);
  EXPECT_EQ(text, "user: " + std::string(19'999'997, 'x') + "\u00e9.\u00e9!");
}

TEST(Jinja, SlicesOfTextsCountCharacters) {
  const Json variables = {{"t", "a\u00e9\u4e16\U0001d6fcz"}};
  EXPECT_EQ(rendered("{{ t[1:3] }} {{ t[:2] }} {{ t[3:] }} {{ t[-2:] }} {{ t[:-4] }} [{{ t[3:1] }}] [{{ t[9:] }}] {{ t[2] }} {{ t[-1] }}",
                     variables),
            "\u00e9\u4e16 a\u00e9 \U0001d6fcz \U0001d6fcz a [] [] \u4e16 z");
  EXPECT_EQ(rendered("{{ t[::-1] }} {{ t[::2] }} {{ '%.2s' % t }} [{{ ''[0:1] }}]", variables),
            "z\U0001d6fc\u4e16\u00e9a a\u4e16z a\u00e9 []");
}

TEST(Jinja, AValueThatHoldsItselfIsNoLeak) {
  EXPECT_EQ(rendered("{% set ns = namespace() %}{% set ns.me = ns %}{% set ns.l = [ns] %}{{ ns.l | length }}"), "1");
  EXPECT_EQ(rendered("{% for i in [1] %}{% macro f() %}{{ i }}{% endmacro %}{% set g = f %}{{ g() }}{% endfor %}"), "1");
}

}  // namespace
}  // namespace tandem::text::jinja
