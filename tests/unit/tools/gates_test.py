#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The gates of tools/ see what they are there to see."""
import pathlib
import re
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tools"))
import doc_symbols  # noqa: E402
import forbidden  # noqa: E402
import layers  # noqa: E402
import links  # noqa: E402
import methods  # noqa: E402
import sizes  # noqa: E402
import source  # noqa: E402
import test_programs  # noqa: E402
import text  # noqa: E402

CODE = """
namespace a {
struct Plain { int x; };
class Thing {
 public:
  explicit Thing(int a, std::map<int, int> b = {}) : a_(a), b_{b} { run([&] { a_ = 1; }); }
  int size() const { return 1'000'000; }
};
template <class A, class B>
int long_one(const std::vector<std::pair<A, B>>& a, B b,
             int c) noexcept {
  if (c) {
    return f("}", '{');  // }
  }
  return 0;
}
const int kTable[] = {f(1), 2};
bool operator==(const Thing& a, const Thing& b) { return true; }
}  // namespace a
"""

CLASSES = """
enum class Kind { kOne };
class Base;
class Role : public Base {
 public:
  explicit Role(int a, std::map<int, int> b = {}) : a_(a), b_{b}, c_(f(b)) { run([&] { a_ = 1; }); }
  ~Role();
  Role& operator=(const Role&) = delete;
  bool operator==(const Role& other) const { return true; }
  [[nodiscard]] int size() const { return 1'000'000; }
  void put(int a);  // put(b)
  void put(std::map<int, int> all = {});
  template <class T> std::function<void(T)> each(T value) noexcept;
  virtual void stop() = 0;
  friend void swap(Role& a, Role& b);
  struct Part {
    int num_bytes() const { return 1; }
    int64_t bytes = f(1);
  };

 private:
  std::function<bool(int)> stop_ = [](int) { return false; };
  void (*handler_)(int);
  std::unique_ptr<Part> part_{make(1)};
  int a_ = f(2), c_;
};
"""


class Gates(unittest.TestCase):
    def test_functions_are_found_with_their_parameters_and_lines(self):
        found = {name: (count, last - first + 1) for name, count, first, last in sizes.functions(CODE)}
        self.assertEqual(found, {"Thing": (2, 1), "size": (0, 1), "long_one": (3, 8), "operator==": (2, 1)})

    def test_methods_are_counted_without_constructors_operators_and_members(self):
        found = {name: found for name, _, found in methods.classes(CLASSES)}
        self.assertEqual(found, {"Role": ["size", "put", "put", "each", "stop"], "Part": ["num_bytes"]})

    def test_comments_and_literals_are_blank_but_lines_stay(self):
        text = 'a = "exit(1)"; // exit(2)\n/* exit(3)\n*/ b = R"(exit(4))";\n'
        self.assertNotIn("exit", source.bare(text))
        self.assertEqual(source.bare(text).count("\n"), 3)

    def test_a_row_permits_modules_and_beginnings_of_paths(self):
        self.assertTrue(layers.permits("model", "model/layout.h"))
        self.assertTrue(layers.permits("reshard/plan", "reshard/plan.h"))
        self.assertFalse(layers.permits("reshard/plan", "reshard/planet.h"))
        self.assertFalse(layers.permits("reshard/plan", "reshard/execute.h"))

    def test_the_table_keeps_the_engines_apart(self):
        table = layers.read_table()
        apart = {"rollout", "train", "queue", "reward"}
        for module in apart:
            self.assertFalse(apart & set(table[module]), module)

    def test_folders_of_runtime_keep_their_order(self):
        page = "<!-- runtime begin -->\n| folder | may include |\n|---|---|\n| . | role |\n| role | - |\n<!-- runtime end -->\n"
        table = layers.parse_table(page, "runtime")
        self.assertEqual(table, {".": ["role"], "role": []})

        def faults(path, *includes):
            return list(layers.folder_faults(path, list(enumerate(includes, 1)), table))
        self.assertEqual(faults("runtime/run.cpp", "runtime/run.h", "runtime/role/actor.h", "model/layout.h"), [])
        self.assertEqual(faults("runtime/role/actor.cpp", "runtime/role/actor.h"), [])
        self.assertIn("actor.cpp:2", faults("runtime/role/actor.cpp", "model/layout.h", "runtime/run.h")[0])
        self.assertIn("no row for other", faults("runtime/other/a.h")[0])
        self.assertIn("one level", faults("runtime/role/deep/a.h")[0])

    def test_an_exception_may_say_how_much(self):
        allowed = sizes.parse_allowed("# a note\nmethods a.h:A: 25; two in one\nparameters a.cpp:f: a row kernel\n")
        self.assertEqual(allowed, {"methods a.h:A": 25, "parameters a.cpp:f": float("inf")})

    def test_forbidden_calls_are_seen_and_methods_are_not(self):
        leaving = forbidden.RULES[2][0]
        for text in ("std::exit(1);", " exit(1);", "  abort();", "std::abort"):
            self.assertTrue(re.search(leaving, text), text)
        for text in ("group.abort(reason);", "group->abort();", "void abort(const std::string& reason)", "on_exit_(1)", "Group::abort()"):
            self.assertFalse(re.search(leaving, text), text)

    def test_the_list_of_wide_lines_only_shrinks(self):
        wide = {"a.h": ["a.h:1: 150", "a.h:2: 150"]}
        self.assertEqual(text.width_faults(wide, {"a.h": 2}), [])
        self.assertIn("a.h:2: 150", text.width_faults(wide, {}))
        self.assertIn("a.h:2: 150", text.width_faults(wide, {"a.h": 1}))
        self.assertEqual(len(text.width_faults(wide, {"a.h": 3})), 1)
        self.assertEqual(len(text.width_faults(wide, {"a.h": 2, "gone.h": 1})), 1)

    def test_a_module_without_a_test_program_is_a_fault(self):
        targets = "data_source_test: phony\ndata_test_helper: phony\nbase_test: phony\nbase_test.cpp.o: CXX\ndatabase_test: phony\n"
        self.assertEqual(test_programs.programs_of(["base", "data"], targets), (["base_test", "data_source_test"], []))
        programs, faults = test_programs.programs_of(["base", "planner"], targets)
        self.assertEqual((programs, len(faults)), (["base_test"], 1))
        self.assertIn("planner", faults[0])

    def test_symbols_in_docs_are_seen(self):
        found = doc_symbols._NAMED.findall("`rollout/engine.cpp:Engine::step` and `make x:y`")
        self.assertEqual(found, [("rollout/engine.cpp", "Engine::step")])

    def test_files_that_docs_name_must_exist(self):
        page = source.ROOT / "docs/page.md"
        there = "`rollout/engine.h`, `tools/check.sh`, `comm/backend/NAME.cpp`, `tests/<file>_test.cpp`, `../shared/a.py`, plain gone/b.h\n"
        self.assertEqual(list(doc_symbols.missing_files(page, there)), [])
        gone = "one\n`rollout/gone.h` and\n```\nscripts/run configs/gone.yaml\n```\n"
        named = [fault.split(": no file ")[1] for fault in doc_symbols.missing_files(page, gone)]
        self.assertEqual(named, ["rollout/gone.h", "configs/gone.yaml"])
        self.assertEqual(list(doc_symbols.missing_files(page, "`mine.py`:\n```\n```\nthen `mine.py`\n")), [], "given by the page")
        module = source.SRC / "comm/README.md"
        self.assertEqual(list(doc_symbols.missing_files(module, "`mpi.cpp` in `backend`")), [])
        self.assertEqual(len(list(doc_symbols.missing_files(module, "`engine.h`"))), 1)

    def test_links_that_lead_nowhere_are_faults(self):
        page = source.ROOT / "docs/guide/page.md"
        good = ("[a](../python.md#a-loss) ![b](../pictures/architecture.svg) [`c`](../../tools/links.py) [d](https://x.org/y)\n"
                "`[e](gone.md)`\n```\n[f](gone.md)\n```\n<!-- [g](gone.md) --> [h](#own-part)\n## Own part\n")
        self.assertEqual(list(links.faults_of(page, good)), [])
        bad = '[a](gone.md)\n[`b`](../python.md#gone)\n<img src="../pictures/gone.png">\n[c](../../../etc)\n[d](/docs/python.md)\n'
        found = list(links.faults_of(page, bad))
        self.assertEqual(sorted(int(fault.split(":")[1]) for fault in found), [1, 2, 3, 4, 5], found)

    def test_anchors_are_those_of_repository_pages(self):
        self.assertEqual(links.anchors_of("# A & `b_c`, d!\n## One\n```\n# no heading\n```\n## One\n"), {"a--b_c-d", "one", "one-1"})

    def test_links_of_a_page_are_those_of_the_site(self):
        page = source.ROOT / "docs/guide/runs.md"
        self.assertEqual(links.site_text(page, "[a](../python.md#x) [tools/links.py](../../tools/links.py) `docs/numerics.md` [b](#c)\n"),
                         "[a](../python.md#x) `tools/links.py` [`docs/numerics.md`](../numerics.md) [b](#c)\n")
        self.assertEqual(links.site_text(page, "a list:\n- x\n```\n[a](../../src)\n```\n"), "a list:\n\n- x\n```\n[a](../../src)\n```\n")
        front = "![a](docs/pictures/architecture.svg) [b](docs/python.md) [c](LICENSE)"
        self.assertEqual(links.site_text(source.ROOT / "README.md", front),
                         "![a](pictures/architecture.svg) [b](python.md) `c`")

    def test_links_of_the_readme_on_a_package_index_lead_to_the_repository_or_are_text(self):
        front = "![a b](docs/a.svg) [c](docs/c.md#d) [`e`](#f) [g](https://x.org/y) `[h](i.md)`\n```\n[j](k.md)\n```\n"
        self.assertEqual(links.index_text(front, ""), "*a b* c `e` [g](https://x.org/y) `[h](i.md)`\n```\n[j](k.md)\n```\n")
        at = "https://h.org/o/tandem"
        self.assertEqual(links.index_text(front, at + "/"),
                         f"![a b]({at}/raw/HEAD/docs/a.svg) [c]({at}/blob/HEAD/docs/c.md#d) [`e`]({at}/blob/HEAD/README.md#f) "
                         "[g](https://x.org/y) `[h](i.md)`\n```\n[j](k.md)\n```\n")

    def test_a_site_with_dead_links_or_foreign_scripts_is_a_fault(self):
        with tempfile.TemporaryDirectory() as name:
            site = pathlib.Path(name)
            (site / "a.html").write_text('<h1 id="x"></h1><a href="a.html#x"></a><a href="b.html"></a><a href="#y"></a>'
                                         '<script src="https://x.org/s.js"></script><a href="https://x.org"></a>')
            faults = [fault for fault in links.site_faults(site) if "only" not in fault]
            self.assertEqual(sorted(fault.split(": ")[1].split(" ")[0] for fault in faults), ["#y", "b.html", "https://x.org/s.js"])


if __name__ == "__main__":
    unittest.main()
