# SPDX-License-Identifier: Apache-2.0
# Values as bytes, between a judged program and its judge: sandbox.py and judge.py both begin with this file.
# A message is its length in 8 bytes (little endian) and one value. A value is a letter and what the letter asks for:
#   N T F         None, True, False          i<hex>;  f<hex>;  c<hex>;<hex>;     int, float, complex
#   s b a         str, bytes, bytearray      <length in hex>: and the bytes; str as UTF-8, lone surrogates kept
#   l t e z d     list, tuple, set, frozenset, dict                              <count in hex>: and the members
#   k             a value of the standard library or numpy: its name and what it is made of
#   others        objects that stay where they are: `other` makes and reads them
# Nothing in it names code to run. Values nest at most DEPTH deep.
import os
import sys

DEPTH = 300
EMPTY = {"l": list, "t": tuple, "e": set, "z": frozenset}
# Modules of pure helpers: what a program imports from them, the judge imports for itself.
HELPERS = ("math", "cmath", "collections", "typing", "itertools", "operator", "string", "re", "datetime", "decimal", "fractions",
           "statistics", "heapq", "bisect", "copy")
LETTERS = {kind: letter.encode() for letter, kind in EMPTY.items()}


class Unsendable(Exception):
    pass


def pack(value, out, other, depth=DEPTH):
    """Appends the pieces of a value to the list `out`. `other(value, out, depth)` does so for all that is no plain data."""
    kind = type(value)
    if depth < 0:
        raise Unsendable("values nest too deep")
    if value is None or kind is bool:
        out.append(b"N" if value is None else b"T" if value else b"F")
    elif kind is int:
        out.append(b"i%x;" % value)
    elif kind is float:
        out.append(b"f%s;" % value.hex().encode())
    elif kind is complex:
        out.append(b"c%s;%s;" % (value.real.hex().encode(), value.imag.hex().encode()))
    elif kind is str or kind is bytes or kind is bytearray:
        raw = value.encode("utf-8", "surrogatepass") if kind is str else bytes(value)
        out.append((b"s%x:" if kind is str else b"b%x:" if kind is bytes else b"a%x:") % len(raw))
        out.append(raw)
    elif kind in LETTERS:
        out.append(LETTERS[kind] + b"%x:" % len(value))
        for member in value:
            pack(member, out, other, depth - 1)
    elif kind is dict:
        out.append(b"d%x:" % len(value))
        for key, member in value.items():
            pack(key, out, other, depth - 1)
            pack(member, out, other, depth - 1)
    else:
        made = made_of(value)
        if made is None:
            other(value, out, depth)
        else:
            out.append(b"k")
            pack(made, out, other, depth - 1)


def made_of(value):
    """(name, arguments) of a value that MAKERS makes anew; None for any other."""
    kind = type(value)
    home, parts = MAKERS.get(kind.__name__, (None, None))[:2]
    made = parts(value) if parts and kind.__module__ == home else None
    return made and (kind.__name__, made)


def items_of(value):
    return (list(value.items()),)


def fields(*names):
    """Of a time without a zone, or a length of time."""
    return lambda value: tuple(getattr(value, name) for name in names) if getattr(value, "tzinfo", None) is None else None


def module(name):
    return __import__(name, fromlist=["*"])


def array(dtype, shape, raw):
    numpy = module("numpy")
    if dtype[1:2] not in tuple("biufc"):
        raise ValueError("an array of " + dtype)
    return numpy.frombuffer(raw, dtype=dtype).reshape(shape).copy()


# By the name of the kind: its module, what makes arguments of a value, their kinds, and what makes a value of them.
MAKERS = {
    "range": ("builtins", lambda value: (value.start, value.stop, value.step), (int, int, int), range),
    "dict_keys": ("builtins", lambda value: (list(value),), (list,), lambda keys: dict.fromkeys(keys).keys()),
    "Counter": ("collections", items_of, (list,), lambda items: module("collections").Counter(dict(items))),
    "OrderedDict": ("collections", items_of, (list,), lambda items: module("collections").OrderedDict(items)),
    "deque": ("collections", lambda value: (list(value), value.maxlen), (list, (int, type(None))),
              lambda items, most: module("collections").deque(items, most)),
    "Decimal": ("decimal", lambda value: (str(value),), (str,), lambda text: module("decimal").Decimal(text)),
    "Fraction": ("fractions", lambda value: (value.numerator, value.denominator), (int, int),
                 lambda top, bottom: module("fractions").Fraction(top, bottom)),
    "timedelta": ("datetime", fields("days", "seconds", "microseconds"), (int,) * 3, lambda *parts: module("datetime").timedelta(*parts)),
    "date": ("datetime", fields("year", "month", "day"), (int,) * 3, lambda *parts: module("datetime").date(*parts)),
    "datetime": ("datetime", fields("year", "month", "day", "hour", "minute", "second", "microsecond"), (int,) * 7,
                 lambda *parts: module("datetime").datetime(*parts)),
    "time": ("datetime", fields("hour", "minute", "second", "microsecond"), (int,) * 4, lambda *parts: module("datetime").time(*parts)),
    "ndarray": ("numpy", lambda value: (value.dtype.str, value.shape, value.tobytes()) if value.dtype.kind in "biufc" else None,
                (str, tuple, bytes), array),
}


class Reader:
    """Values out of bytes that somebody else wrote. `other(letter, reader)` reads what is no plain data. Errors: ValueError, and what
    the makers raise."""

    def __init__(self, data, other):
        self.data, self.at, self.other = data, 0, other

    def until(self, mark):
        end = self.data.find(mark, self.at, self.at + (1 << 20))
        if end < 0:
            raise ValueError("cut short")
        text = self.data[self.at:end]
        self.at = end + 1
        return text

    def whole(self):
        value = self.value(DEPTH)
        if self.at != len(self.data):
            raise ValueError("more than one value")
        return value

    def value(self, depth):
        letter = self.data[self.at:self.at + 1].decode("latin-1")
        self.at += 1
        if letter in ("N", "T", "F"):
            return None if letter == "N" else letter == "T"
        if letter == "i":
            return int(self.until(b";"), 16)
        if letter == "f":
            return float.fromhex(self.until(b";").decode("ascii"))
        if letter == "c":
            return complex(float.fromhex(self.until(b";").decode("ascii")), float.fromhex(self.until(b";").decode("ascii")))
        if letter in ("s", "b", "a"):
            return self.text(letter)
        if depth < 1:
            raise ValueError("values nest too deep")
        if letter in EMPTY or letter == "d":
            count = int(self.until(b":"), 16)
            if not 0 <= count <= len(self.data) - self.at:
                raise ValueError("more members than bytes")
            if letter == "d":
                return {self.value(depth - 1): self.value(depth - 1) for _ in range(count)}
            return EMPTY[letter]([self.value(depth - 1) for _ in range(count)])
        return self.made(depth) if letter == "k" else self.other(letter, self)

    def text(self, letter):
        size = int(self.until(b":"), 16)
        if not 0 <= size <= len(self.data) - self.at:
            raise ValueError("a text longer than its message")
        raw = self.data[self.at:self.at + size]
        self.at += size
        return raw.decode("utf-8", "surrogatepass") if letter == "s" else raw if letter == "b" else bytearray(raw)

    def made(self, depth):
        name, parts = self.value(depth - 1)
        kinds, maker = MAKERS[name][2:]
        if len(parts) != len(kinds) or not all(isinstance(part, kind) for part, kind in zip(parts, kinds)):
            raise ValueError("no " + name)
        return maker(*parts)


def send(fd, value, other):
    out = []
    pack(value, out, other)
    data = b"".join(out)
    data = memoryview(len(data).to_bytes(8, "little") + data)
    while data:
        data = data[os.write(fd, data):]


def receive(fd, most, other):
    """The next value, of at most `most` bytes. Errors: EOFError at the end, ValueError for what is no value."""
    size = int.from_bytes(exactly(fd, 8), "little")
    if size > most:
        raise ValueError("a message of %d bytes" % size)
    return Reader(exactly(fd, size), other).whole()


def exactly(fd, size):
    parts = bytearray()
    while len(parts) < size:
        part = os.read(fd, min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


class LateSite:
    """Third-party packages are set up when the first one is asked for: most programs need none, and setting up takes longer than they
    run."""

    def find_spec(self, name, path=None, target=None):
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        import site
        import importlib.machinery
        site.main()
        return importlib.machinery.PathFinder.find_spec(name, path)
