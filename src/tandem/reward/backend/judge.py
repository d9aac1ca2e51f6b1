# SPDX-License-Identifier: Apache-2.0
# Runs the tests in descriptor 3 against a program in another process, which serves descriptor 4 (sandbox.py); wire.py stands in front.
# Its first argument is how many bytes a message of the program may have. Its verdict is a line on descriptor 6, which the program
# does not have: "passed", "passed by_reference" or "failed: WHY".
#   by_reference   objects of the program took part that are no plain data, or it changed arguments in place
# What the program returns arrives as plain data, as bytes that name no code, and is compared here as Python compares. The right
# results never leave this process: an object of the program is asked for its parts, and equals nothing but another of its objects.
import _ast
import _operator
import builtins
import sys

GUESTS = {"np": "numpy", "pd": "pandas"}
PAIRS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "matmul", "eq", "ne", "lt", "le", "gt", "ge")
ALONE = ("neg", "abs", "index", "invert", "pos", "getitem", "setitem", "delitem")
ASKED = ("iter", "next", "len", "str", "repr", "bool", "hash", "int", "float", "reversed")
LAZY = ("map", "filter", "zip", "iter", "reversed", "enumerate", "partial")
COMPARE = ("equal", "close", "same", "check", "compare", "verify", "match")  # in the name of a function: it compares what it is given
OF_GIVEN = {"iter": iter, "next": next, "len": len, "str": str, "bool": bool, "hash": hash, "getitem": _operator.getitem,
            "eq": _operator.eq, "lt": _operator.lt}


class Unjudged(BaseException):
    """The program broke the rules of the conversation. Where a test catches it, the program fails all the same."""

    seen = False

    def __init__(self, why):
        super().__init__(why)
        Unjudged.seen = True


class Module:
    """A function of the standard library, for the program to call on its own objects. With a program, the tests may call it, too: it is
    called there."""

    def __init__(self, where, program=None):
        self.where, self.program, self.__name__ = where, program, where.partition(":")[2]

    def __call__(self, *args, **kwargs):
        return self.program.call(self, args, kwargs)


class Remote:
    """An object of the program. What it is asked is answered there; it is never shown an object of the tests to compare itself with."""

    def __init__(self, program, number, sort, name):
        vars(self).update(_program=program, _number=number, _sort=sort, __name__=name)

    def __call__(self, *args, **kwargs):
        return self._program.call(self, args, kwargs)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self._program.of_objects("builtins:getattr", self, name)

    def __setattr__(self, name, value):
        self._program.of_objects("builtins:setattr", self, name, value)

    def __enter__(self):
        return self._program.call(self._program.of_objects("builtins:getattr", self, "__enter__"), (), {})

    def __exit__(self, *error):
        self._program.call(self._program.of_objects("builtins:getattr", self, "__exit__"), (None, None, None), {})

    def __instancecheck__(self, value):
        return isinstance(value, Remote) and self._program.of_objects("builtins:isinstance", value, self)

    def __subclasscheck__(self, value):
        return isinstance(value, Remote) and self._program.of_objects("builtins:issubclass", value, self)


def between(name):
    def operation(self, other):
        if not isinstance(other, Remote):
            return NotImplemented
        return self._program.of_objects("operator:" + name, self, other)
    return operation


def alone(where):
    return lambda self, *args: self._program.of_objects(where, self, *args)


for _name in PAIRS:
    setattr(Remote, "__%s__" % _name.rstrip("_"), between(_name))
for _name in ALONE:
    setattr(Remote, "__%s__" % _name, alone("operator:" + _name))
for _name in ASKED:
    setattr(Remote, "__%s__" % _name, alone("builtins:" + _name))


class Program:
    """The other end of descriptor 4."""

    def __init__(self, message_bytes):
        self.message_bytes = message_bytes
        self.given, self.numbers, self.exceptions, self.remotes, self.kinds = [], {}, {}, {}, {}
        self.by_reference, self.names = False, {}

    def pack_other(self, value, out, depth):
        kind = type(value)
        if kind is Remote:
            self.by_reference = self.by_reference or value._number not in self.names
            return out.append(b"o%x;" % value._number)
        if kind is Module:
            out.append(b"m")
            return pack(value.where, out, self.pack_other, depth - 1)
        home, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
        if callable(value) and home and home != "tests" and getattr(sys.modules.get(home), str(name), None) is value:
            out.append(b"m")
            return pack(home + ":" + name, out, self.pack_other, depth - 1)
        if not (callable(value) or hasattr(kind, "__next__") or kind.__module__ == "tests"):
            raise TypeError("a program cannot be given a " + kind.__name__)
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.given)
            self.given.append(value)
        out.append(b"g%x;" % self.numbers[id(value)])

    def read_other(self, letter, reader):
        if letter == "g":
            return self.given[int(reader.until(b";"), 16)]
        base = reader.value(DEPTH - 1) if letter == "u" else None
        if letter == "u":
            letter, reader.at = "o", reader.at + 1
        if letter != "o":
            raise ValueError("the letter " + letter)
        text = reader.until(b";")
        sort, number, name = text[:1].decode(), int(text[1:], 16), reader.value(1)
        if number not in self.remotes:
            self.remotes[number] = Remote(self, number, sort, name)
        remote = self.remotes[number]
        if base is not None:
            return self.backed(base, remote)
        return self.coroutine(remote) if sort == "a" else remote

    def backed(self, base, remote):
        """Plain data that also has what a subclass of the program adds, such as the fields of a namedtuple."""
        kind = type(base)
        if kind in (bool, type(None)):
            return base
        if kind not in self.kinds:
            self.kinds[kind] = type(kind.__name__, (kind,), {"__getattr__": lambda self, name: getattr(self._remote, name)})
        value = self.kinds[kind](base)
        vars(value)["_remote"] = remote
        return value

    async def coroutine(self, remote):
        return self.of_objects("asyncio:run", remote)

    def of_objects(self, where, *args):
        self.by_reference = True
        return self.call(Module(where), args, {})

    def call(self, function, args, kwargs, changes=False):
        value = self.ask(("change" if changes else "call", function, args, kwargs))
        if not changes:
            return value
        if not isinstance(value, tuple) or len(value) != 2 or not isinstance(value[1], tuple) or len(value[1]) != len(args):
            raise Unjudged("it returned another number of arguments")
        for mine, theirs in zip(args, value[1]):
            self.by_reference = change(mine, theirs) or self.by_reference
        return value[0]

    def ask(self, message):
        try:
            send(4, message, self.pack_other)
        except Unsendable as error:
            raise TypeError(str(error)) from None
        except OSError:
            raise Unjudged("it has ended") from None
        while True:
            verb, *said = self.heard()
            if verb == "given" and len(said) == 4:
                self.answer(*said)
                continue
            if verb == "value" and len(said) == 2:
                sys.stdout.write(str(said[1]))
                return said[0]
            if verb == "raise" and len(said) == 3:
                sys.stdout.write(str(said[2]))
                raise self.exception(*said[:2], is_next(message))
            raise Unjudged("it said something else")

    def heard(self):
        try:
            message = receive(4, self.message_bytes, self.read_other)
        except EOFError:
            raise Unjudged("it has ended") from None
        except Exception as error:
            raise Unjudged("it sent no value: %s" % type(error).__name__) from None
        if type(message) is not tuple or not message:
            raise Unjudged("it sent no message")
        return message

    def exception(self, names, args, may_end):
        """What to raise in the tests. Only where a next value was asked for may iteration end: else the tests' own would."""
        kind = next((self.exceptions[name] for name in names if name in self.exceptions), None) or builtin_exception(names)
        if issubclass(kind, (StopIteration, StopAsyncIteration)) and not may_end:
            kind = RuntimeError
        return kind(*args) if type(args) is tuple else kind()

    def answer(self, number, what, args, kwargs):
        """The program asks an object that it was given."""
        try:
            said = ("value", self.asked(self.given[number], what, args, kwargs))
        except Exception as error:
            said = ("raise", [kind.__name__ for kind in type(error).__mro__], tuple(str(part) for part in error.args))
        try:
            send(4, said, self.pack_other)
        except (Unsendable, TypeError):
            send(4, ("raise", ["TypeError"], ("no value for a program",)), self.pack_other)

    def asked(self, value, what, args, kwargs):
        if what == "call":
            return value(*args, **kwargs)
        kind = type(value)
        if what in ("iter", "next") and hasattr(kind, "__next__"):
            return next(value) if what == "next" else value
        if kind.__module__ != "tests":
            raise TypeError("it can be called, no more")
        self.by_reference = True
        if what in ("get", "set"):
            name = str(args[0])
            if name.startswith("_"):
                raise AttributeError(name)
            return getattr(value, name) if what == "get" else setattr(value, name, args[1])
        return OF_GIVEN[what](value, *args)


def change(mine, theirs):
    """Makes a list, dict, set or bytearray equal to what the program made of it. True if it was not."""
    if type(mine) is not type(theirs) or type(mine) not in (list, dict, set, bytearray) or mine == theirs:
        return False
    mine.clear()
    (mine.extend if type(mine) in (list, bytearray) else mine.update)(theirs)
    return True


def is_next(message):
    """Whether an iterator of the program is asked for its next value."""
    return message[0] == "call" and type(message[1]) is Module and message[1].where == "builtins:next"


def builtin_exception(names):
    for name in names if type(names) is list else ():
        kind = getattr(builtins, name, None) if type(name) is str else None
        if isinstance(kind, type) and issubclass(kind, Exception):
            return kind
    return Exception


class InPlace:
    """A function called for what it does to its arguments: the result is dropped, or kept apart from them."""

    def __init__(self, program):
        self.program = program

    def __call__(self, function):
        if not isinstance(function, (Remote, Module)):
            return function
        return lambda *args, **kwargs: self.program.call(function, args, kwargs, changes=True)


def walk(node):
    """Every node below, without the module ast, which takes as long to load as the tests to run."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        for field in node._fields:
            part = getattr(node, field, None)
            stack.extend(one for one in (part if isinstance(part, list) else [part]) if isinstance(one, _ast.AST))


def names_in(node):
    return {part.id for part in walk(node) if isinstance(part, _ast.Name)}


def placed(node):
    return node.lineno, node.col_offset


def called(node):
    """The name of the function that a call calls; empty for any other node."""
    function = getattr(node, "func", None)
    return (getattr(function, "id", "") or getattr(function, "attr", "")) if isinstance(node, _ast.Call) else ""


def element_wise(target, value):
    """(names, names they are made from) of an assignment, or of a loop's target and what it runs over."""
    parts = getattr(target, "elts", None)
    if parts and called(value) == "enumerate" and len(parts) == 2 and value.args:
        return element_wise(parts[1], value.args[0])
    whole = value.args if called(value) == "zip" else getattr(value, "elts", None)
    if parts and whole and len(parts) == len(whole):
        return [pair for part, one in zip(parts, whole) for pair in element_wise(part, one)]
    return [(names_in(target), names_in(value))]


def shows_changes(value):
    """Whether a later change of what a value is made from is seen in it: no copy, or what is computed when it is asked for."""
    if any(isinstance(part, (_ast.Lambda, _ast.GeneratorExp)) for part in walk(value)):
        return True
    if isinstance(value, _ast.Subscript):
        return not any(isinstance(part, _ast.Slice) for part in walk(value.slice))
    return isinstance(value, (_ast.Name, _ast.Attribute, _ast.Tuple, _ast.List, _ast.Dict)) or called(value) in LAZY


def function_made(node):
    """A function is made from what its body uses and does not bind."""
    inside = [part for part in walk(node) if isinstance(part, (_ast.Name, _ast.arg))]
    own = {part.arg if isinstance(part, _ast.arg) else part.id for part in inside if not isinstance(getattr(part, "ctx", None), _ast.Load)}
    return {node.name}, names_in(node) - own


def moves(tree):
    """(names, names they are made from, where, whether later changes are seen) for all that binds names in the tests."""
    found = []
    for node in walk(tree):
        if isinstance(node, (_ast.FunctionDef, _ast.AsyncFunctionDef)):
            found.append((*function_made(node), placed(node), True))
        targets = getattr(node, "targets", None) or [getattr(node, "target", None) or getattr(node, "optional_vars", None)]
        value = getattr(node, "value", None) or getattr(node, "iter", None) or getattr(node, "context_expr", None)
        if targets[0] is None or not isinstance(value, _ast.AST):
            continue
        seen = shows_changes(value) and not hasattr(node, "iter")
        for target in targets:
            found += [(made, used, placed(target), seen) for made, used in element_wise(target, value)]
    builtin = set(dir(builtins)) - set().union(*(made for made, *_ in found))
    return [(made, used - builtin, *rest) for made, used, *rest in found]


def closure(names, steps):
    """The names, and all that is made from them."""
    names, before = set(names), None
    while before != len(names):
        before = len(names)
        names.update(*(made for made, used in steps if used & names))
    return names


def compared(tree):
    """The names in each operand of what compares: comparisons, differences, and calls that are given what they compare."""
    found = []
    for node in walk(tree):
        parts = []
        if isinstance(node, _ast.Compare):
            parts = [node.left] + node.comparators
        elif isinstance(node, _ast.BinOp) and isinstance(node.op, _ast.Sub):
            parts = [node.left, node.right]
        elif any(word in called(node).lower() for word in COMPARE):
            parts = node.args + [one.value for one in node.keywords]
        found += [[names_in(part) for part in parts]] if len(parts) > 1 else []
    return found


def meets(operands, results, given, made):
    """Whether a result is compared with what is made from an argument. A name on both sides, as an index, is no result."""
    for i, one in enumerate(operands):
        others = set().union(*operands[:i], *operands[i + 1:])
        if one & (results - others | made) and others & given:
            return True
    return False


def keeps_arguments(node, steps, comparisons):
    """Whether the arguments of a statement `y = f(x)` stay as they are: what is made from x afterwards is compared with y."""
    made = set().union(*map(names_in, node.targets))
    given = set().union(*map(names_in, node.value.args)) - set(dir(builtins)).difference(*(step[0] for step in steps))
    after = [(to, of) for to, of, where, seen in steps if where > placed(node)]
    shared = closure(given, [(to, of) for to, of, where, seen in steps if seen])
    shared |= closure(given, [(of, to) for to, of, where, seen in steps if seen and where < placed(node) and len(of) == 1])
    given, results = closure(shared, after), closure(made, after)
    return any(meets(operands, results, given, made) for operands in comparisons)


def mark_changes(tree):
    """Statements `f(x)` and `y = f(x)` are called for what they do to x, too. But no right result is made from an x that the program
    changed: where y, or what is made from it, is compared with x, or what is made from it, x stays."""
    steps, comparisons = moves(tree), compared(tree)
    for node in walk(tree):
        call = getattr(node, "value", None)
        if not isinstance(node, (_ast.Expr, _ast.Assign)) or not isinstance(call, _ast.Call):
            continue
        if isinstance(node, _ast.Assign) and call.args and keeps_arguments(node, steps, comparisons):
            continue
        place = {name: getattr(call, name) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset")}
        name = _ast.Name(id="__in_place__", ctx=_ast.Load(), **place)
        call.func = _ast.Call(func=name, args=[call.func], keywords=[], **place)


def is_tool(name, dotted):
    """Whether the tests alone say that a name is a module's."""
    return name in dotted and (name in GUESTS or name in getattr(sys, "stdlib_module_names", sys.builtin_module_names))


def own_module(name, desc, dotted):
    """The module that a name of the program stands for, which the judge loads for itself."""
    if is_tool(name, dotted):
        return GUESTS.get(name, name)
    return desc[1] if desc[0] == "module" and type(desc[1]) is str and desc[1] != "__main__" else None


def bound(program, name, desc, dotted, alone):
    """What the tests see under a name that the program has; None to leave it unknown. A helper is the judge's own under its own name
    only, and not where it is `alone`: then it is what is tested, and the program is asked."""
    home = own_module(name, desc, dotted)
    if home is not None:
        return module(home)
    if desc[0] == "import":
        where, _, what = desc[1].partition(":")
        if where not in HELPERS or what.startswith("_"):
            raise Unjudged("it named what is no helper")
        return getattr(module(where), what) if name == what and not alone else Module(desc[1], program)
    if desc[0] == "exception":
        program.exceptions[name] = type(name, (builtin_exception(desc[1]),), {})
        return program.exceptions[name]
    value = desc[1]
    if isinstance(value, Remote):
        program.names[value._number] = name
    return value


def is_exception(name):
    return isinstance(getattr(builtins, name), type) and issubclass(getattr(builtins, name), BaseException)


def names_for(program, tree):
    """The names of the program that the tests use. A builtin name means the builtin: a program must not bring its own `abs`. Only where
    the tests have no other builtin, and the program no other name for them, it is the function that is tested."""
    dotted = {node.value.id for node in walk(tree) if isinstance(node, _ast.Attribute) and isinstance(node.value, _ast.Name)}
    wanted = sorted(name for name in names_in(tree) if not name.startswith("__"))
    capture = any("stdout" in (getattr(node, "attr", "") or getattr(node, "id", "")) for node in walk(tree))
    found = program.ask(("names", wanted, capture))
    if type(found) is not dict or not all(name in wanted and type(desc) is tuple and len(desc) == 2 for name, desc in found.items()):
        raise Unjudged("it named something else")
    built = [name for name in wanted if hasattr(builtins, name) and not is_exception(name)]
    alone = len([name for name in found if not is_tool(name, dotted)]) == 1
    ours = {name: bound(program, name, desc, dotted, alone) for name, desc in found.items()
            if not hasattr(builtins, name) or alone and built == [name]}
    return {name: value for name, value in ours.items() if value is not None or found[name] == ("object", None)}


def verdict(message_bytes):
    with os.fdopen(3, "rb") as file:
        tree = compile(file.read(), "tests.py", "exec", 0x400)  # PyCF_ONLY_AST
    if os.read(4, 1) != b"\n":
        return "failed: the program did not run to its end"
    program = Program(message_bytes)
    names = {"__name__": "tests", "__builtins__": builtins, "__in_place__": InPlace(program)}
    names.update(names_for(program, tree))
    mark_changes(tree)
    exec(compile(tree, "tests.py", "exec"), names)
    return "failed: Unjudged" if Unjudged.seen else "passed by_reference" if program.by_reference else "passed"


def judge():
    sys.meta_path.append(LateSite())
    try:
        said = verdict(int(sys.argv[1]))
    except BaseException as error:
        said = "failed: %s" % type(error).__name__
    os.write(6, said.encode() + b"\n")
    os._exit(0)


judge()
