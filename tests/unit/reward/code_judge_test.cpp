// SPDX-License-Identifier: Apache-2.0
// The rule `code` with tests that are Python: the program runs in one process, the tests in another.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "tandem/reward/rule.h"

namespace tandem::reward {
namespace {

Score judged(const std::string& program, const std::string& tests) {
  static const std::unique_ptr<Rule> rule = make_rule("code(code_timeout_s=5)");
  return rule->score({"```python\n" + program + "\n```", nlohmann::json::array({tests}).dump()});
}

double by_reference(const Score& score) {
  for (const auto& [name, value] : score.parts)
    if (name == "code/by_reference") return value;
  return -1;
}

struct Case {
  const char* program;
  const char* tests;
};

TEST(CodeJudge, AssertsOnPlainDataHoldAsInOneProcess) {
  const Case cases[] = {
      {"def f(x): return 2 * x", "assert f(2) == 4\nassert 'aa' == f('a')\nassert f([1]) == [1, 1]\nassert f((1,)) != [1, 1]"},
      {"def f(x): return x > 1", "assert f(2) is True\nassert f(2)\nassert not f(1)\nassert f(1) is not None\nassert f(2) == 1"},
      {"def f(x): return None", "x = 3\nassert f(x) is None\ny = f(x)\nassert y == None, 'it is nothing'"},
      {"def f(x): return x / 3", "import math\nassert math.isclose(f(1), 0.333333333, rel_tol=1e-6)\nassert abs(f(3) - 1) < 1e-9\n"
                                 "assert round(f(2), 3) == 0.667\nassert 0 < f(1) <= 0.34 < f(2)"},
      {"from math import isclose\ndef f(x): return x / 3", "assert isclose(f(1), 0.333333333, rel_tol=1e-6)"},
      {"import math\ndef f(x): return math.sqrt(x)", "assert math.isclose(f(4), 2)"},
      {"def f(x): return x", "assert f(3) in [1, 2, 3]\nassert 2 in f([1, 2])\nassert f('ab') in 'cabd'\nassert 5 not in f({1: 2})"},
      {"def sum(a, b): return a + b", "assert sum(1, 2) == 3"},
      {"def f(x): return abs(x)", "assert abs(f(-3)) == 3"},
      {"def f(): return (1, [2], {3}, frozenset([4]), {5: None, (1,): 2}, 1.5, 2j, '\\ud800\\n', b'q', True, 10**5000, range(3), -0.0)",
       "assert f() == (1, [2], {3}, frozenset([4]), {5: None, (1,): 2}, 1.5, 2j, '\\ud800\\n', b'q', True, 10**5000, range(3), 0)"},
      {"def f(x): return float(x)", "assert f('inf') == float('inf') > 1e308\nassert f('nan') != f('nan')\nassert f('-0.0') == 0"},
      {"def add(a, b=1): return a + b",
       "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(1) == candidate(a=1, b=1) == 2\n"
       "    for i in range(50):\n        assert candidate(i, i) == 2 * i\ncheck(add)"},
      {"def f(g, l): return [g(x) for x in l]", "assert f(lambda x: x + 1, [1, 2]) == [2, 3]\nassert f(str, [1]) == ['1']"},
      {"def f(x):\n    if x < 0: raise ValueError('neg')", "try:\n    f(-1)\n    assert False\nexcept ValueError as e:\n"
          "    assert str(e) == 'neg'"},
      {"class Bad(ValueError): pass\ndef f(x): raise Bad('q')", "try:\n    f(1)\n    assert 0\nexcept Bad as e:\n    assert str(e) == 'q'"},
      {"def f(x): raise KeyError(x)", "import unittest\nwith unittest.TestCase().assertRaises(KeyError):\n    f(1)"},
      {"from collections import Counter, OrderedDict, deque, defaultdict\nfrom decimal import Decimal\nfrom fractions import Fraction\n"
       "def f(): return Counter('aab'), OrderedDict(a=1), deque([1]), Decimal('1.5'), Fraction(1, 3)",
       "from collections import Counter, deque\nfrom decimal import Decimal\nfrom fractions import Fraction\n"
       "assert f() == ({'a': 2, 'b': 1}, {'a': 1}, deque([1]), Decimal('1.5'), Fraction(1, 3))\n"
       "assert f()[0].most_common(1) == [('a', 2)]"},
      {"import datetime\ndef f(d): return d + datetime.timedelta(1)",
       "import datetime\nassert f(datetime.date(2024, 2, 28)) == datetime.date(2024, 2, 29)"},
      {"def f(x): print('hi', x)", "import io, sys\nout, sys.stdout = sys.stdout, io.StringIO()\nf(1)\n"
                                   "said, sys.stdout = sys.stdout.getvalue(), out\nassert said == 'hi 1\\n'"},
      {"def f(x): print(x, end='')", "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as out:\n    f(5)\n"
                                     "assert out.getvalue() == '5'"},
      {"def f(n): return list(range(n))", "assert len(f(300000)) == 300000\nassert f(0) == []"},
      {"def f(n): return [f(n - 1)] if n else []", "def deep(n): return [deep(n - 1)] if n else []\nassert f(250) == deep(250) != f(249)"},
      {"LIMIT = 7\ndef f(x): return x < LIMIT", "assert f(LIMIT - 1) and not f(LIMIT)"},
      {"class Solution:\n    def twice(self, x): return 2 * x\ntwice = Solution().twice", "assert twice(2) == 4"}};
  for (const Case& c : cases) {
    const Score score = judged(c.program, c.tests);
    EXPECT_EQ(score.score, 1) << c.program << "\n" << c.tests;
    EXPECT_EQ(by_reference(score), 0) << c.program << "\n" << c.tests;
  }
}

TEST(CodeJudge, ObjectsOfTheProgramAreAskedWhereTheyAreAndTheScoreSaysSo) {
  const Case cases[] = {
      {"class S:\n    def __init__(s): s.x = []\n    def push(s, v): s.x.append(v)\n    def pop(s): return s.x.pop()\n"
       "    def __len__(s): return len(s.x)", "s = S()\ns.push(3)\nassert len(s) == 1\nassert s.pop() == 3\nassert s.x == []"},
      {"class Solution:\n    def twice(self, x): return 2 * x", "assert Solution().twice(2) == 4"},
      {"class V:\n    def __init__(s, x): s.x = x\n    def __add__(s, o): return V(s.x + o.x)\n    def __eq__(s, o): return s.x == o.x",
       "assert V(1) + V(2) == V(3)\nassert not V(1) == V(2)\nassert isinstance(V(1), V)\nassert not isinstance(3, V)"},
      {"def f(n): yield from range(n)", "assert list(f(3)) == [0, 1, 2]\nassert next(f(3)) == 0\nassert 2 in f(3)"},
      {"def f(n): return map(str, range(n))", "assert list(f(2)) == ['0', '1']"},
      {"def f(n): return lambda x: x + n", "assert f(1)(2) == 3"},
      {"from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)",
          "assert f() == (1, 2)\nassert f().x == 1"},
      {"async def f(x): return x + 1", "import asyncio\nassert asyncio.run(f(1)) == 2"},
      {"def f(l): l.sort()", "x = [3, 1]\nf(x)\nassert x == [1, 3]"},
      {"def f(l):\n    l.remove(0)\n    return len(l)", "x = [0, 5, 0]\nk = f(x)\nassert k == 2\nassert x[:k] == [5, 0]"},
      {"def f(t): return t.val + (f(t.left) if t.left else 0)",
       "class T:\n    def __init__(s, val, left=None): s.val, s.left = val, left\nassert f(T(1, T(2))) == 3"},
      {"def f(t): return t.v", "class T:\n    v = 3\nif __name__ == '__main__':\n    assert False\nassert f(T()) == 3"},
      {"import contextlib\n@contextlib.contextmanager\ndef f(): yield 5", "with f() as x:\n    assert x == 5"}};
  for (const Case& c : cases) {
    const Score score = judged(c.program, c.tests);
    EXPECT_EQ(score.score, 1) << c.program << "\n" << c.tests;
    EXPECT_EQ(by_reference(score), 1) << c.program << "\n" << c.tests;
  }
}

TEST(CodeJudge, AWrongResultFailsAsInOneProcess) {
  const Case cases[] = {{"def f(x): return 2 * x", "assert f(2) == 5"},
                        {"def f(x): return [1]", "assert f(1) == (1,)"},
                        {"def f(x): return 1", "assert f(1) is True"},
                        {"def f(x): return '1'", "assert f(1) == 1"},
                        {"def f(x): return float('nan')", "assert f(1) == 3 or abs(f(1) - 3) < 1"},
                        {"def f(x): return float('inf')", "import math\nassert math.isclose(f(1), 3)"},
                        {"def f(x): return None", "assert f(1)"},
                        {"def f(x): pass", "try:\n    f(1)\n    assert False\nexcept ValueError:\n    pass"},
                        {"def g(x): return 1", "assert f(1) == 1"},
                        {"def f(x): return 1\nraise ValueError", "assert f(1) == 1"},
                        {"def f(x): return x", "x = [1]\nassert f(x) == [2]"},
                        {"def f(x): return 1", "assert f(1) == 1\nassert f(2) == 4"},
                        {"def f(x): return 1", "assert f(1) == 1\nraise SystemExit(0)"},
                        {"import os\ndef f(x): os._exit(0)", "try:\n    y = f(1)\nexcept:\n    y = None\nassert y is None"}};
  for (const Case& c : cases) EXPECT_EQ(judged(c.program, c.tests).score, 0) << c.program << "\n" << c.tests;
}

// What scored without solving anything when tests ran where the program had run: f(3) is 123457.
TEST(CodeJudge, FourteenWaysToFoolAJudgeInTheSameProcessScoreNothing) {
  const std::string same = "class A(int):\n    def __eq__(s, o): return True\n    def __ne__(s, o): return False\n"
      "    __hash__ = int.__hash__\n"
                           "    def __lt__(s, o): return True\n    __le__ = __gt__ = __ge__ = __contains__ = __lt__\n"
                           "    def __sub__(s, o): return 0\n    __rsub__ = __sub__\n";
  const std::string token = "import json, os, sys\ndef token():\n    frame = sys._getframe()\n    while frame:\n"
      "        for v in frame.f_locals.values():\n"
                            "            if isinstance(v, dict) and 'token' in v: return v['token']\n        frame = frame.f_back\n";
  const std::string ways[] = {
      "import builtins\nbuiltins.exec = lambda *a: None",
      "import builtins\nkeep = compile\nbuiltins.compile = lambda *a, **k: keep('pass', 'x', 'exec')",
      "import os\nkeep = os.fdopen\nclass Channel:\n    def __init__(s, f): s.f = f\n    def __enter__(s): return s\n"
      "    def __exit__(s, *a): pass\n"
      "    def write(s, b): return s.f.write(b)\n    def read(s, n):\n        import json\n        q = json.loads(s.f.read(n))\n"
      "        q['tests'] = ''\n        return json.dumps(q).encode() + b'\\n'\nos.fdopen = lambda *a, **k: Channel(keep(*a, **k))",
      "import json.decoder\nkeep = json.decoder.JSONDecoder.decode\n"
      "json.decoder.JSONDecoder.decode = lambda *a: {**keep(*a), 'tests': ''}",
      "import json\nkeep = json.loads\njson.loads = lambda *a: {**keep(*a), 'tests': ''}\nimport sys\nf = sys._getframe()\n"
      "while f:\n    if 'loads' in f.f_locals:\n        import ctypes\n        f.f_locals['loads'] = json.loads\n"
      "        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(f), ctypes.c_int(0))\n    f = f.f_back",
      same + "def f(x): return A(1)",
      same + "class B(A):\n    __class__ = int\ndef f(x): return [B(1)][0]",
      "import os, json\nos.write(4, b'\\n')\nq = json.loads(os.read(4, 1 << 20))\n"
      "os.write(4, json.dumps({'token': q['token']}).encode() + b'\\n')\nos._exit(0)",
      token + "def f(x):\n    os.write(4, json.dumps({'token': token()}).encode() + b'\\n')\n    os._exit(0)",
      "import re, sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n        q = frame.f_locals.get('question')\n"
      "        if q: return int(re.search(r'== (\\d+)', q['tests'])[1])\n        frame = frame.f_back",
      "import sys\ndef f(x):\n    for const in sys._getframe(1).f_code.co_consts:\n"
      "        if isinstance(const, int) and const > 1000: return const",
      "import sys\nsys.modules['__main__'].exec = lambda code, names: None",
      "from unittest import mock\ndef f(x): return mock.ANY",
      "import sys\nsys.modules['__main__'].reply = lambda question, names: {'token': question['token']}"};
  for (const std::string& way : ways) {
    EXPECT_EQ(judged(way, "assert f(3) == 123457").score, 0) << way;
    EXPECT_EQ(judged("def f(x): return 5\n" + way, "x = 3\nassert f(3) == 123457\nassert abs(f(x) - 123457) < 1e-6").score, 0) << way;
  }
}

TEST(CodeJudge, AHelperUnderTheTestedNameBringsNoBuiltinsAlong) {
  const Case cheats[] = {
      {"from itertools import chain as f\ndef set(x): return 0", "assert set(f((3, 4), (5,))) == set((4, 5))"},
      {"from fractions import Fraction as f\ndef abs(x): return 0", "assert abs(f(3) - 28.27) < 1e-2"},
      {"from itertools import chain as f\ndef all(x): return True", "assert all(x == 7 for x in f((3, 4)))"},
      {"from fractions import Fraction as f\ndef str(x): return ''", "assert str(f(3)) == str(7)"},
      {"f = 5\ndef str(x): return ''", "assert str(f) == str(7)"},
      {"import math as f\ndef abs(x): return 0", "assert abs(f.sqrt(3) - 28.27) < 1e-2"},
      {"def filter(*x): return [3]\ndef set(x): return 0", "assert set(filter(bool, [3])) == set([4])"},
      {"def abs(x): return 0", "def check(f):\n    assert abs(f([3]) - 4) < 1e-2\ncheck(len)"}};
  for (const Case& c : cheats) EXPECT_EQ(judged(c.program, c.tests).score, 0) << c.program << "\n" << c.tests;
  const Case honest[] = {
      {"from math import gcd as f", "assert f(4, 6) == 2\nassert list(map(f, [4], [6])) == [2]"},
      {"from math import gcd", "assert gcd(4, 6) == 2"},
      {"import math\ndef sum(a, b): return a + b", "assert math.isclose(sum(1, 2), 3)"},
      {"def round(x): return x + 5", "def check(candidate):\n    assert candidate(1) == 6\ncheck(round)"},
      {"def sum(a, b): return a + b", "try:\n    sum(1, 'a')\n    assert False\nexcept TypeError:\n    assert sum(1, 2) == 3"},
      {"from math import isclose\ndef f(x): return x", "assert isclose(f(2.5), 2.5)"}};
  for (const Case& c : honest) EXPECT_EQ(judged(c.program, c.tests).score, 1) << c.program << "\n" << c.tests;
}

TEST(CodeJudge, NoExceptionOfTheProgramEndsALoopOfTheTests) {
  const std::string raise = "class Mine(StopIteration): pass\ndef f(*x): raise ", pairs = "cases = [(1, 5), (2, 6)]\n";
  for (const std::string kind : {"StopIteration", "StopIteration(5)", "StopAsyncIteration", "GeneratorExit", "Mine"})
    for (const std::string loop : {"for got, want in zip(map(f, [1, 2]), [5, 6]): assert got == want",
                                   "assert all(map(lambda c: f(c[0]) == c[1], cases))",
                                   "assert not list(filter(lambda c: f(c[0]) != c[1], cases))",
                                   "for got in iter(lambda: f(1), None):\n    assert got == 5\n    break",
                                   "import itertools\nfor got in itertools.starmap(f, cases): assert got == 5 and Mine",
                                   "class Each:\n    def __iter__(s): return s\n    def __next__(s): return f(1)\n"
                                   "for got in Each(): assert got == 5"})
      EXPECT_EQ(judged(raise + kind, pairs + loop).score, 0) << kind << "\n" << loop;
  const std::string counter = "class f:\n    def __init__(s, n): s.n = n\n    def __iter__(s): return s\n"
                              "    def __next__(s):\n        if not s.n: raise StopIteration\n        s.n -= 1\n        return s.n";
  const std::string ended = "\nit = f(1)\nassert next(it) == 0\ntry:\n    next(it)\n    assert False\nexcept StopIteration:\n    pass";
  for (const std::string& program : {counter, std::string("def f(n): return iter(range(n)[::-1])")})
    EXPECT_EQ(judged(program, "assert list(f(3)) == [2, 1, 0]" + ended).score, 1) << program;
}

TEST(CodeJudge, NoRightResultIsMadeFromAChangedArgumentInAnyWay) {
  const char* const emptied = "def f(x, *a):\n    x.clear()\n    return []";
  const char* const zeroed = "def f(x, *a):\n    x[:] = [0]\n    return 0";
  const Case cases[] = {
      {emptied, "x = [3, 1, 2]\ny = f(x)\nexpected = sorted(x)\nassert y == expected"},
      {emptied, "x = [3, 1, 2]\ny = f(x)\ncopied = list(x)\nexpected = sorted(copied)\ngot = list(y)\nassert got == expected"},
      {emptied, "x = [3, 1, 2]\ny = f(x)\nassert sorted(x) == y"},
      {emptied, "x = [3, 1, 2]\nsame = x\ny = f(x)\nexpected = sorted(same)\nassert y == expected"},
      {emptied, "x = [3, 1, 2]\ndef right(): return sorted(x)\ny = f(x)\nassert y == right()"},
      {emptied, "x = [3, 1, 2]\nright = lambda: sorted(x)\ny = f(x)\nassert y == right()"},
      {emptied, "cases = [[3, 1], [5, 4]]\nx = cases[0]\ny = f(x)\nassert y == sorted(cases[0])"},
      {emptied, "for x in [[3, 1], [5, 4]]:\n    y = f(x)\n    e = sorted(x)\n    assert y == e"},
      {emptied, "def check(c):\n    x = [3, 1]\n    y = c(x)\n    e = sorted(x)\n    assert y == e\ncheck(f)"},
      {zeroed, "x = [3, 1, 2]\ny = f(x)\nexpected = max(x)\nassert y == expected"},
      {zeroed, "x = [3, 1, 2]\ny = f(x)\nexpected = sum(x)\nassert abs(y - expected) < 1e-6"},
      {zeroed, "x = [3, 1, 2]\nimport math\ny = f(x)\nassert math.isclose(y, sum(x))"},
      {zeroed, "x = [3, 1, 2]\nimport math\ny = f(x)\nexpected = sum(x)\nok = math.isclose(y, expected)\nassert ok"},
      {zeroed, "x = [3, 1, 2]\ny = f(x)\nexpected = sum(x)\nok = y == expected\nassert ok"},
      {zeroed, "x = [3, 1, 2]\ny = f(x)\nexpected = 0\nexpected += sum(x)\nassert y == expected"},
      {zeroed, "x = [3, 1, 2]\ny = f(x)\nexpected = 0\nfor v in x:\n    expected += v\nassert y == expected"},
      {zeroed, "x = [3, 1, 2]\ny = f(x)\nassert -1 < y == sum(x)"},
      {zeroed, "x = [3, 1, 2]\ndef check(a, b): assert a == b\ny = f(x)\ncheck(y, sum(x))"},
      {"def f(x):\n    x[:] = [0] * 3\n    return [0] * 3",
       "x = [3, 1, 2]\ny = f(x)\nassert len(y) == 3\nfor a, b in zip(y, x[::-1]): assert a == b"}};
  for (const Case& c : cases) EXPECT_EQ(judged(c.program, c.tests).score, 0) << c.program << "\n" << c.tests;
}

TEST(CodeJudge, ChangesOfArgumentsAreSeenWhereNoRightResultIsMadeFromThem) {
  const char* const kept = "def f(l, *a):\n    l[:] = [v for v in l if v]\n    return len(l)";
  const Case cases[] = {
      {kept, "x = [0, 5, 0]\nk = f(x)\nassert k == 1\nassert x[:k] == [5]"},
      {kept, "x = [0, 5, 0]\nexpected = [5]\nk = f(x)\nassert k == len(expected)\nfor i in range(k):\n    assert x[i] == expected[i]"},
      {kept, "x = [0, 5, 0]\nk = f(x)\ngot = x[:k]\nassert got == [5]"},
      {kept,
       "for x, expected in [([0, 5, 0], [5]), ([1], [1])]:\n    k = f(x)\n    assert k == len(expected)\n    assert x == expected"},
      {kept,
       "cases = [([0, 5, 0], [5]), ([1], [1])]\nfor x, expected in cases:\n"
       "    k = f(x)\n    assert k == len(expected)\n    assert x == expected"},
      {kept,
       "cases = [([0, 5, 0], [5]), ([1], [1])]\nx, expected = cases[0]\nk = f(x)\nassert k == len(expected)\nassert x == expected"},
      {kept, "x = [0, 5, 0]\nexpected = [5]\nk = f(x, len(x))\nn = len(expected)\nassert k == n\nassert x == expected"},
      {kept, "x = [0, 5, 0]\nexpected = [5]\nk = f(x)\nfor i, v in enumerate(x[:k]): assert v == expected[i]"},
      {kept, "x = [0, 5, 0]\nexpected = [v for v in x if v]\nk = f(x)\nassert k == len(expected)\nassert x == expected"},
      {"def f(l): l.sort()", "x = [3, 1, 2]\nf(x)\nassert x == sorted(x)\nassert x == [1, 2, 3]"},
      {"def f(l): l.sort()\ndef g(l): l.sort(); return l", "x = [3, 1, 2]\ny = g(x)\nassert y is not None\nassert x == [1,2,3]"},
      {"def f(l): return sorted(l)", "x = [3, 1, 2]\ny = f(x)\nexpected = sorted(x)\nassert y == expected and x == [3, 1, 2]"},
      {"def f(l): l.sort(); return l", "x = [3, 1, 2]\ny = f(x)\nexpected = sorted(x)\nassert y == expected"}};
  for (const Case& c : cases) EXPECT_EQ(judged(c.program, c.tests).score, 1) << c.program << "\n" << c.tests;
}

TEST(CodeJudge, WhatTheProgramDefinesDoesNotReplaceTheTools) {
  const std::string wrong = "\ndef f(x): return 77\n";
  for (const std::string tool : {"def abs(x): return 0", "def isclose(*a, **k): return True", "def len(x): return 3",
      "class math:\n    isclose = print"})
    EXPECT_EQ(judged(tool + wrong, "import math\nfrom math import isclose\nassert abs(f(1) - 3) < 1e-6\nassert len([f(1)]) == 3").score,
        0) << tool;
  EXPECT_EQ(judged("class math:\n    @staticmethod\n    def isclose(*a): return True" + wrong, "assert math.isclose(f(1), 3)").score, 0);
  EXPECT_EQ(judged("import unittest.mock as m\nf = m._ANY", "assert f() == 3").score, 0);
  EXPECT_EQ(judged("def f(l): l.clear(); return []", "x = [3, 1]\nassert f(x) == sorted(x)").score, 0) << "the expectation is made from x";
  EXPECT_EQ(judged("def f(l): l.clear(); return []", "x = [3, 1]\ny = f(x)\nassert y == sorted(x)").score, 0);
  EXPECT_EQ(judged("def f(g): return g.__globals__['SECRET']", "SECRET = 5\nassert f(lambda: 1) == 5").score, 0);
}

}  // namespace
}  // namespace tandem::reward
