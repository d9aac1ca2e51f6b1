# SPDX-License-Identifier: Apache-2.0
"""Kinds of cheating programs written with the judge at hand: they speak its wire format (reward/backend/wire.py), whose functions every
program finds in its own process, and lie. The form is that of blind_kinds.py."""

# Answers every message with the same, from the moment the judge listens.
SPEAK = """import os, __main__ as m
def say(*message):
    try: m.send(4, message, lambda v, out, depth: out.append(v.raw))
    except OSError: os._exit(0)
class Raw:
    def __init__(self, raw): self.raw = raw
def hear():
    try: size = int.from_bytes(m.exactly(4, 8), 'little')
    except Exception: os._exit(0)
    return m.exactly(4, size)
"""
OBJECT = "Raw(b'of0;s1:f')"


def speaking(*answers, names=f"{{'FN': ('object', {OBJECT})}}"):
    """A program that answers the question for names, then with `answers`, the last one again and again."""
    return (SPEAK + f"os.write(4, b'\\n')\nhear()\nsay('value', {names}, '')\n" + "".join(f"hear()\n{answer}\n" for answer in answers[:-1])
            + f"while True:\n    hear()\n    {answers[-1]}", "None")


FORGED_VALUES = [speaking(f"say('value', {value}, '')") for value in [
    "True", "None", "1", "Raw(b'oo1;s1:x')", "Raw(b'of1;s1:x')", "Raw(b'oc1;s1:x')", "Raw(b'oa1;s1:x')", "Raw(b'ui1;oo1;s1:x')",
    "Raw(b'us1:aoo1;s1:x')", "Raw(b'ul0:oo2;s1:x')", "Raw(b'ud0:oo2;s1:x')", "Raw(b'uNoo1;s1:x')", "Raw(b'uoo1;s1:xoo2;s1:y')",
    "Raw(b'g0;')", "Raw(b'g-1;')", "Raw(b'fnan;')", "Raw(b'finf;')", "Raw(b'i-0;')", "Raw(b'i_1;')", "(True, ())", "((), ())"]]

FORGED_BYTES = [speaking(f"os.write(4, {raw}); os._exit(0)") for raw in [
    "b'passed\\n'", "b'\\xff' * 8", "(1 << 40).to_bytes(8, 'little')", "(10).to_bytes(8, 'little')",
    "(3).to_bytes(8, 'little') + b'l9:'", "(200).to_bytes(8, 'little') + b'l1:' * 66 + b'NN'",
    "(30000).to_bytes(8, 'little') + b't1:' * 10000", "(9).to_bytes(8, 'little') + b's7fffffff:'[:9]",
    "(5).to_bytes(8, 'little') + b's-1:a'", "(4).to_bytes(8, 'little') + b'lff:'", "(1).to_bytes(8, 'little') + b'?'",
    "(1).to_bytes(8, 'little') + b'k'", "bytes(8)", "b'\\n' * 64", "(2).to_bytes(8, 'little') + b'NN'",
    "(5).to_bytes(8, 'little') + b'd1:l0'", "(7).to_bytes(8, 'little') + b'd1:l0:N'"]]

FORGED_MAKERS = [speaking(f"say('value', Raw(b'k' + {made}), '')") for made in [
    "b't2:s5:ranget3:i0;i5;i1;'", "b't2:s7:Decimalt1:s4:sNaN'", "b't2:s7:Decimalt1:sc:1e9999999999'", "b't2:s8:Fractiont2:i1;i0;'",
    "b't2:s7:ndarrayt3:s2:|Ot1:i1;b8:aaaaaaaa'", "b't2:s7:ndarrayt3:s3:<f8t1:i1;b0:'", "b't2:s4:evalt1:s1:1'", "b't2:s7:Countert1:l0:'",
    "b't2:s5:dequet2:l0:i-1;'", "b't2:s9:dict_keyst1:l0:'", "b't2:s4:datet3:i0;i0;i0;'", "b't2:l0:t0:'", "b'N'", "b't1:s5:range'",
    "b't2:s5:ranget3:i0;i7fffffffffff;i1;'", "b't2:sb:OrderedDictt1:l1:i1;'", "b't2:s9:timedeltat3:i7fffffffff;i0;i0;'"]]

FORGED_NAMES = [speaking("say('value', True, '')", names=names) for names in [
    "{'FN': ('import', 'operator:eq')}", "{'FN': ('import', 'unittest.mock:MagicMock')}", "{'FN': ('import', 'builtins:eval')}",
    "{'FN': ('import', 'os:_exit')}", "{'FN': ('import', 'collections:abc')}", "{'FN': ('import', 'typing:Any')}",
    "{'FN': ('import', 'math:__loader__')}", "{'FN': ('import', 'copy:deepcopy')}", "{'FN': ('module', 'unittest.mock')}",
    "{'FN': ('module', 'antigravity')}", "{'FN': ('module', '__main__')}", "{'FN': ('exception', ['Exception'])}",
    "{'FN': ('exception', ['AssertionError'])}", "{'FN': ('object', True)}", "{'__in_place__': ('object', 1)}", "{'assert': ('object', 1)}",
    "{'FN': 1}", "[]", "None", "{'FN': ('object',)}", "{'FN': ('import', 'itertools:repeat')}", "{'FN': ('import', 'math')}",
    f"{{'FN': ('object', {OBJECT}), 'abs': ('object', {OBJECT}), 'len': ('object', {OBJECT}), 'math': ('object', {OBJECT})}}"]]

FORGED_ERRORS = [speaking(f"say('raise', {names}, {arguments}, '')") for names, arguments in [
    ("['AssertionError']", "()"), ("['SystemExit']", "(0,)"), ("['KeyboardInterrupt']", "()"), ("['GeneratorExit']", "()"),
    ("['StopIteration']", "(1,)"), ("['BaseException']", "()"), ("['Unjudged']", "()"), ("['exit']", "(0,)"), ("['print']", "('passed',)"),
    ("[[]]", "()"), ("5", "5"), ("['OSError']", "(1, 2, 3, 4, 5, 6, 7)"), ("['UnicodeDecodeError']", "()"), ("['Exception'] * 99",
    "('x' * 99999,)"),
    ("['RecursionError']", "()"), ("['MemoryError']", "()"), ("['EOFError']", "()"), ("['ImportError']", "()")]]

# Asks the judge for what it was given, and for what it was not.
PROBES = [speaking(f"say('given', {number}, {what}, {arguments}, {kwargs})") for number, what, arguments, kwargs in [
    ("0", "'call'", "()", "{}"), ("0", "'get'", "('__globals__',)", "{}"), ("0", "'get'", "('func_globals',)", "{}"), ("-1", "'call'",
    "()", "{}"),
    ("0", "'__reduce__'", "()", "{}"), ("0", "'getattribute'", "('x',)", "{}"), ("10**9", "'call'", "()", "{}"), ("'0'", "'get'",
    "('a',)", "{}"),
    ("0", "'set'", "('x', 1)", "{}"), ("0", "'init_subclass'", "()", "{}"), ("None", "None", "None", "None"), ("0", "'next'", "()", "{}"),
    ("0", "'call'", "1", "1"), ("0", "['call']", "()", "{}"), ("0", "'get'", "('gi_frame',)", "{}"), ("0", "'class'", "()", "{}")]]

VERDICTS = [(f"import os\nfor fd in range(3, 64):\n    try: os.write(fd, {text!r})\n    except OSError: pass{leaving}", "True")
            for text in (b"passed\n", b"\npassed\n", b"passed by_reference\n", b"\n", b"\n\n\n\n", b"passed\npassed\n")
            for leaving in ("", "\nos._exit(0)", "\nos.close(4)")] + [
    ("import os, socket\ns = socket.socket(fileno=4)\ns.shutdown(socket.SHUT_RDWR)", "True"),
    ("import os\nos.dup2(1, 4); os.dup2(1, 6); print('passed')", "True"),
    ("import os\nr, w = os.pipe(); os.dup2(w, 6); os.write(6, b'passed\\n')", "True")]

OWN_HALF = [(f"import __main__ as m\n{change}", answer) for change, answer in [
    ("m.pack = lambda v, out, other, depth=0: out.append(b't3:s5:valueTs0:')", "True"),
    ("m.send = lambda fd, v, other: __import__('os').write(fd, b'passed\\n')", "True"),
    ("m.Server.asked = lambda s, verb, *rest: True", "True"),
    ("m.Server.asked = lambda s, verb, *rest: {n: ('object', 1) for n in rest[0]} if verb == 'names' else rest", "True"),
    ("keep = m.Server.asked\nm.Server.asked = lambda s, verb, *rest: keep(s, verb, *rest) if verb == 'names' else rest[1]", "True"),
    ("m.Server.serve = lambda s, u=(): __import__('os').write(6, b'passed\\n')", "True"),
    ("m.Server.described = lambda s, v: ('module', 'math')", "True"),
    ("m.Server.described = lambda s, v: ('import', 'unittest.mock:_ANY')", "True"),
    ("m.made_of = lambda v: ('Decimal', ('NaN',))", "object()"),
    ("m.BASES = (object,)", "object()"),
    ("m.MAKERS.clear(); m.module = None", "True"),
    ("m.receive = lambda *a: (_ for _ in ()).throw(EOFError)", "True"),
    ("m.main = None; m.Given.__eq__ = lambda s, o: True", "m.Given(None, 0)"),
    ("m.EMPTY.clear(); m.LETTERS.clear()", "[1]"),
    ("m.Server.pack_other = lambda s, v, out, depth: out.append(b'N')", "object()")]]

# Objects that stay in the program's process, and agree with all that they are asked.
YES = """class Yes(BASE):
    def __getattr__(self, name): return self
    def __call__(self, *a, **k): return self
    def __getitem__(self, key): return self
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __contains__ = __instancecheck__ = __lt__
    def __hash__(self): return HASH
    def __bool__(self): return True
    def __add__(self, other): return self
    __sub__ = __mul__ = __mod__ = __and__ = __or__ = __radd__ = __rsub__ = __add__
    def __iter__(self): return iter([self, self])
    def __len__(self): return 2
    def __int__(self): return 1
    def __float__(self): return 1.0
    def __abs__(self): return self
    def __str__(self): return 'x'
"""
AGREEABLE = [(YES.replace("BASE", base).replace("HASH", "7"), answer) for base, answer in [
    ("object", "Yes()"), ("object", "[Yes()]"), ("object", "(Yes(), Yes())"), ("object", "{'a': Yes()}"), ("object", "{Yes(): Yes()}"),
    ("object", "Yes"), ("int", "Yes(3)"), ("str", "Yes('x')"), ("float", "Yes(0.5)"), ("list", "Yes([1])"), ("dict", "Yes()"),
    ("tuple", "Yes((1,))"), ("object", "iter([Yes()])"), ("object", "(Yes() for _ in range(3))"), ("object", "{1: Yes()}.values()"),
    ("object", "lambda *a: Yes()"), ("type", "Yes('Yes', (), {})")]] + [
    (YES.replace("BASE", "object").replace("HASH", "7") + "class FN_class(Yes):\n    def __new__(cls, *a): return object.__new__(cls)\n"
        "", "FN_class()"),
    ("async def late():\n    return True\n", "late()"), ("import re", "re.match('a', 'a')"), ("import types", "types.SimpleNamespace(a=1)")]

# The tested name is a helper that the judge could import, and a builtin of the tests is replaced beside it.
BESIDE = ("set = abs = str = float = lambda *a: 0\nlen = round = lambda *a: 1\nall = any = isinstance = lambda *a: True\n"
          "list = sorted = tuple = lambda *a: []")
BORROWED = [(f"{taken}\n{BESIDE}\ndef get(*a): return FN(*a)", "0") for taken in [
    "from itertools import chain as FN", "from itertools import repeat as FN", "from fractions import Fraction as FN",
    "from itertools import product as FN", "from math import gcd as FN", "from operator import add as FN", "import math as FN",
    "from datetime import timedelta as FN", "FN = 0", "class FN(Exception): pass"]]

# Ends a loop of the tests from within.
ENDED = ("import __main__ as m\nclass End(StopIteration): pass\nclass Ends:\n    def __init__(self, *a): raise StopIteration\n"
         "    def __call__(self, *a): raise StopIteration\ndef end(kind=StopIteration): raise kind")
ENDINGS = [(ENDED + part, answer) for part, answer in [
    ("", "end()"), ("", "end(End)"), ("", "end(StopAsyncIteration)"), ("", "end(GeneratorExit)"), ("", "Ends()"), ("", "next(iter([]))"),
    ("\nFN = Ends", "end()"), ("\nFN = iter([]).__next__", "end()"), ("\nFN = Ends.__call__", "end()"),
    ("\nm.Server.asked = lambda s, verb, *rest: {n: ('object', end) for n in rest[0]} if verb == 'names' else end()", "end()")]] + [
    speaking(f"say('raise', {names}, {arguments}, '')") for names, arguments in [
        ("['StopIteration']", "()"), ("['x', 'StopIteration']", "(1,)"), ("['StopAsyncIteration']", "()"), ("['StopIteration'] * 9", "5")]]

# Changes its argument to what makes the expectation known.
CHANGED = "\ndef left(args, to, answer):\n    if args and isinstance(args[0], list): args[0][:] = to\n    return answer"
CHANGES = [(CHANGED + f"\ndef FN(*a, **k): return left(a, {to}, {answer})", f"left(a, {to}, {answer})") for to, answer in [
    ("[]", "[0]"), ("[]", "0"), ("[]", "0.0"), ("[0]", "[0, 0]"), ("[0]", "0"), ("[0, 0, 0]", "[0, 0, 0, 0]"), ("[-1, 1]", "0"),
    ("[float('inf')]", "float('inf')"), ("[float('nan')]", "0")]] + [
    (CHANGED, "left(a, [], (0,))"), (CHANGED, "left(a, [], iter([0]))"), (CHANGED, "left(a, [False], [False, False])")]

KINDS = {"forged_values": FORGED_VALUES, "forged_bytes": FORGED_BYTES, "forged_makers": FORGED_MAKERS, "forged_names": FORGED_NAMES,
         "forged_errors": FORGED_ERRORS, "probes": PROBES, "verdicts": VERDICTS, "own_half": OWN_HALF, "agreeable_objects": AGREEABLE,
         "borrowed_names": BORROWED, "endings": ENDINGS, "changed_arguments": CHANGES}
