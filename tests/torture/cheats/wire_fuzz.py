#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads damaged messages as the judge does (reward/backend/wire.py). Each must be a value or an ordinary exception, soon; whole ones must
be what was sent.

    tests/torture/cheats/wire_fuzz.py --seconds 600"""
import argparse
import collections
import datetime
import decimal
import fractions
import pathlib
import random
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
LETTERS = b"NTFifcsbaltezdkoug:;0123456789abcdef-\xff"
SLOW_S = 5

VALUES = [None, True, 1, -5, 10**5000, 1.5, float("inf"), 2j, "abc\ud800", b"x", bytearray(b"y"), [1, [2]], (1,), {1}, frozenset([2]),
    {"a": [1]},
          {(1, 2): None}, range(3), decimal.Decimal("1.5"), fractions.Fraction(1, 3), datetime.datetime(2020, 1, 1), datetime.date(2020,
              1, 1),
          datetime.timedelta(1), collections.deque([1], 3), collections.Counter("aab"), collections.OrderedDict(a=1), {1: 2}.keys()]


def wire():
    names = {}
    exec(compile((ROOT / "src/tandem/reward/backend/wire.py").read_text(), "wire.py", "exec"), names)
    return names


def no_object(letter, reader):
    raise ValueError(letter)


def damaged(rng, seeds):
    message = bytearray(rng.choice(seeds))
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(message) + 1)
        way = rng.randrange(4)
        if way == 0 and at < len(message):
            message[at] = rng.choice(LETTERS)
        elif way == 1 and at < len(message):
            del message[at]
        else:
            message[at:at] = rng.choice(seeds) if way == 2 else bytes([rng.choice(LETTERS)])
    return bytes(message)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng, names = random.Random(options.seed), wire()
    seeds = []
    for value in VALUES:
        pieces = []
        names["pack"](value, pieces, None)
        seeds.append(b"".join(pieces))
        read = names["Reader"](seeds[-1], no_object).whole()
        assert read == value and type(read) is type(value), (read, value)
    begin, tried, worst = time.monotonic(), 0, 0.0
    while time.monotonic() < begin + options.seconds:
        message, start = damaged(rng, seeds), time.monotonic()
        try:
            names["Reader"](message, no_object).whole()
        except Exception:  # what the judge takes for no value
            pass
        tried, worst = tried + 1, max(worst, time.monotonic() - start)
        if worst > SLOW_S:
            sys.exit(f"{message!r} took {worst:.1f} s")
    print(f"{tried} damaged messages, the slowest {1000 * worst:.0f} ms; seed {options.seed}")


if __name__ == "__main__":
    main()
