# SPDX-License-Identifier: Apache-2.0
# Runs the program in descriptor 3. Then, as its first argument says:
#   run      nothing more
#   ask      answers one question, a line of JSON on descriptor 4, with a line of JSON:
#            {"call": "name", "args": [...]} -> {"value": ...}, what the function, or Solution().name, returns
#   serve    does what the judge in another process asks on descriptor 4 (wire.py), until that closes:
#            ("names", [...], capture)       -> {name: (kind, what)} of those the program has
#            ("call", what, args, kwargs)    -> ("value", result, printed) or ("raise", names of classes, arguments, printed)
#            ("change", what, args, kwargs)  -> the same; the value is (result, args as they are afterwards)
# What the right result is, is never said here: the judge compares.
import builtins
import sys


def set_up():
    sys.meta_path.append(LateSite())
    from _sitebuiltins import Quitter
    builtins.exit, builtins.quit = Quitter("exit", "Ctrl-D"), Quitter("quit", "Ctrl-D")
    sys.argv[:] = ["answer.py"]


def run(names):
    with os.fdopen(3, "rb") as file:
        source = file.read()
    exec(compile(source, "answer.py", "exec"), names)


def plain(value):
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, (tuple, range)):
        return list(value)
    return value.item() if hasattr(value, "item") else str(value)


def reply(question, names):
    name = question["call"]
    owner = names["Solution"]() if name not in names and "Solution" in names else None
    function = getattr(owner, name) if owner is not None else names[name]
    return {"value": function(*question["args"])}


def answer_one(names):
    import json
    with os.fdopen(4, "r+b", buffering=0) as channel:
        channel.write(b"\n")
        line = b""
        while not line.endswith(b"\n"):
            part = channel.read(1 << 16)
            if not part:
                return
            line += part
        answer = json.dumps(reply(json.loads(line), names), default=plain).encode() + b"\n"
        while answer:
            answer = answer[channel.write(answer):]


BASES = (int, float, str, tuple, list, dict, set, frozenset, bytes, complex)


class Given:
    """An object of the judge: it is asked, not copied."""

    def __init__(self, server, number):
        object.__setattr__(self, "_there", (server, number))

    def _ask(self, what, *args, **kwargs):
        server, number = object.__getattribute__(self, "_there")
        return server.ask_back(number, what, args, kwargs)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return self._ask("get", name)

    def __setattr__(self, name, value):
        self._ask("set", name, value)

    def __call__(self, *args, **kwargs):
        return self._ask("call", *args, **kwargs)


for _name in ("iter", "next", "len", "getitem", "str", "bool", "eq", "lt", "hash"):
    setattr(Given, "__%s__" % _name, lambda self, *args, _name=_name: self._ask(_name, *args))


class Server:
    """The program's objects, by number."""

    def __init__(self, names):
        self.names, self.objects, self.numbers, self.capture = names, [], {}, False

    def pack_other(self, value, out, depth):
        kind = type(value)
        if kind is Given:
            return out.append(b"g%x;" % object.__getattribute__(value, "_there")[1])
        if kind.__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item"):
            return pack(value.item(), out, self.pack_other, depth - 1)
        base = next((base for base in BASES if isinstance(value, base)), None)
        if base is not None:
            out.append(b"u")
            pack(base.__int__(value) if base is int else base(value), out, self.pack_other, depth - 1)
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        sort = b"c" if isinstance(value, type) else b"a" if hasattr(value, "cr_frame") else b"f" if callable(value) else b"o"
        out.append(b"o%s%x;" % (sort, self.numbers[id(value)]))
        pack(str(getattr(value, "__name__", kind.__name__)), out, self.pack_other, depth - 1)

    def read_other(self, letter, reader):
        if letter == "o":
            return self.objects[int(reader.until(b";"), 16)]
        if letter == "g":
            return Given(self, int(reader.until(b";"), 16))
        if letter == "m":
            owner, name = reader.value(DEPTH).split(":")
            return getattr(module(owner), name)
        raise ValueError(letter)

    def ask_back(self, number, what, args, kwargs):
        send(4, ("given", number, what, args, kwargs), self.pack_other)
        verb, *said = self.serve(("value", "raise"))
        if verb == "value":
            return said[0]
        kind = next((getattr(builtins, name) for name in said[0] if hasattr(builtins, name)), Exception)
        raise kind(*said[1])

    def described(self, value):
        if isinstance(value, type(sys)):
            return ("module", value.__name__)
        if isinstance(value, type) and issubclass(value, Exception):
            return ("exception", [kind.__name__ for kind in value.__mro__])
        home = getattr(value, "__module__", None)
        if home in HELPERS and getattr(module(home), getattr(value, "__name__", ""), None) is value:
            return ("import", home + ":" + value.__name__)
        return ("object", value)

    def asked(self, verb, *rest):
        if verb == "names":
            self.capture = rest[1]
            return {name: self.described(self.names[name]) for name in rest[0] if name in self.names}
        function, args, kwargs = rest
        result = function(*args, **kwargs)
        return (result, args) if verb == "change" else result

    def answer(self, message):
        out = sys.stdout
        if self.capture:
            import io
            sys.stdout = io.StringIO()
        try:
            said = ("value", self.asked(*message))
        except Exception as error:
            said = ("raise", [kind.__name__ for kind in type(error).__mro__], error.args)
        printed = sys.stdout.getvalue() if self.capture and hasattr(sys.stdout, "getvalue") else ""
        sys.stdout = out
        try:
            send(4, said + (printed,), self.pack_other)
        except (Unsendable, RecursionError) as error:
            send(4, ("raise", ["TypeError"], (str(error),), printed), self.pack_other)

    def serve(self, until=()):
        while True:
            message = receive(4, 1 << 40, self.read_other)
            if message[0] in until:
                return message
            self.answer(message)


def main(what):
    names = {"__name__": "__main__" if what == "run" else "answer", "__builtins__": builtins}
    set_up()
    run(names)
    sys.stdout.flush()
    if what == "ask":
        answer_one(names)
    elif what == "serve":
        os.write(4, b"\n")
        try:
            Server(names).serve()
        except EOFError:
            pass


main(sys.argv[1])
