#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes pictures of a run, live or finished: its page, `tandem top`, and a talk with its model."""
import argparse
import base64
import contextlib
import fcntl
import html
import itertools
import json
import os
import pathlib
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/run"))
COLUMNS, ROWS = 100, 30
WINDOW = (1280, 800)
QUESTIONS = ("Each of 5 children brings 10 shells. How many shells do they bring?",
             "A box holds 9 red books and 4 blue books. How many books are in the box?")
# Dark on a light page and on a dark one: the ground has a border that both show.
GROUND, BAR, BORDER, TEXT, MUTED = "#1e2127", "#292d35", "#7d8590", "#d7dae0", "#9da5b1"
COLOURS = {"black": "#5c6370", "red": "#e06c75", "green": "#8fc379", "brown": "#e5c07b", "blue": "#61afef", "magenta": "#c678dd",
           "cyan": "#56b6c2", "white": "#d7dae0"}
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
CELL, LINE, MARGIN, HEAD = 8.4, 19, 16, 34


class Terminal:
    """A program on a pseudo-terminal, and the screen that it draws."""

    def __init__(self, program, words):
        import pyte
        self.title = " ".join(["tandem", *map(str, words)])
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.stream = pyte.ByteStream(self.screen)
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.process = subprocess.Popen([program, *words], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
                                        env={**os.environ, "TERM": "xterm"})
        os.close(theirs)

    def read_until(self, done, seconds):
        """Whether `done` came true. The end of the program ends the wait, too."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if select.select([self.ours], [], [], 0.1)[0]:
                try:
                    self.stream.feed(os.read(self.ours, 1 << 16))
                except OSError:  # the program closed its end
                    return done()
            elif done():
                return True
            elif self.process.poll() is not None:
                return False
        return False

    def type(self, text):
        os.write(self.ours, text.encode())

    def close(self):
        if self.process.poll() is None:
            self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        return self.process.returncode


def pieces(row):
    """(first column, text, colour, bold) of each part of a row that looks the same."""
    cells = [row[x] for x in range(COLUMNS)]
    style = lambda x: (cells[x].fg, cells[x].bold)  # noqa: E731
    for (colour, bold), columns in itertools.groupby(range(COLUMNS), style):
        columns = list(columns)
        text = "".join(cells[x].data for x in columns)
        if text.strip():
            lead = len(text) - len(text.lstrip())
            yield columns[0] + lead, text.strip(), colour, bold


def svg(terminal):
    rows = [list(pieces(terminal.screen.buffer[y])) for y in range(ROWS)]
    title = html.escape(terminal.title)
    while len(rows) > 1 and not rows[-1]:
        rows.pop()
    width, height = round(COLUMNS * CELL + 2 * MARGIN), HEAD + len(rows) * LINE + 2 * MARGIN - 6
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">',
             f"<title>{title}</title>",
             f"<style>text {{ font: 14px {FONTS}; white-space: pre; }}</style>",
             f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8" fill="{GROUND}" stroke="{BORDER}"/>',
             f'<path d="M1 {HEAD}V8.5A7.5 7.5 0 0 1 8.5 1H{width - 8.5}A7.5 7.5 0 0 1 {width - 1} 8.5V{HEAD}Z" fill="{BAR}"/>',
             f'<text x="{MARGIN}" y="22" fill="{MUTED}">$ {title}</text>']
    for y, row in enumerate(rows):
        for column, text, colour, bold in row:
            fill = TEXT if colour == "default" else COLOURS.get(colour, f"#{colour}" if re.fullmatch("[0-9a-f]{6}", colour) else TEXT)
            weight = ' font-weight="bold"' if bold else ""
            lines.append(f'<text x="{MARGIN + column * CELL:.1f}" y="{HEAD + MARGIN + y * LINE + 10}" textLength="{len(text) * CELL:.1f}" '
                         f'lengthAdjust="spacingAndGlyphs" fill="{fill}"{weight}>{html.escape(text)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def picture_of_top(program, run):
    terminal = Terminal(program, ["top", run])
    # Of a finished run the program ends by itself.
    terminal.read_until(lambda: False, 30)
    terminal.close()
    if not any(line.strip() for line in terminal.screen.display):
        sys.exit(f"pictures: `tandem top {run}` shows nothing")
    return svg(terminal)


def picture_of_talk(program, model, template, questions):
    terminal = Terminal(program, ["talk", "--model", model, "--temperature", "0", *(["--chat-template", template] if template else [])])
    at_prompt = lambda: terminal.screen.display[terminal.screen.cursor.y].rstrip() == ">"  # noqa: E731
    asked = []
    try:
        for question in questions:
            if not terminal.read_until(at_prompt, 300):
                sys.exit("pictures: `tandem talk` is not ready for a question:\n" + "\n".join(terminal.screen.display).rstrip())
            if not asked:
                terminal.screen.erase_in_display(2)  # what it says while it loads
                terminal.screen.cursor_position()
                terminal.screen.draw("> ")
            terminal.type(question + "\n")
            asked.append(question)
            terminal.read_until(lambda: not at_prompt(), 10)
        if not terminal.read_until(at_prompt, 300):
            sys.exit("pictures: `tandem talk` does not answer:\n" + "\n".join(terminal.screen.display).rstrip())
    finally:
        terminal.close()
    return svg(terminal)


def picture_of_board(program, run, out):
    import board_check
    import webdriver
    if not webdriver.installed():
        board_check.install_chromium()
    with subprocess.Popen([program, "board", run], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as board:
        try:
            url = re.search(r"http://\S+", board.stdout.readline())
            if not url:
                sys.exit(f"pictures: `tandem board {run}` does not serve")
            with webdriver.Browser() as browser:
                browser.emulate(*WINDOW, "light")
                browser.open(url.group())
                browser.wait("window.tandemState && tandemState.polls > 0", "the page asked its server")
                time.sleep(1)  # the bar of progress moves for 0.6 s
                shot = browser.call("GET", "/screenshot")
        finally:
            board.terminate()
    (out / "board.png").write_bytes(base64.b64decode(shot))


def lack_for_talk(model, template):
    """Why nobody can talk with the model, or None."""
    if not (model / "config.json").is_file():
        return f"no model at {model}; --model DIR names one"
    settings = model / "tokenizer_config.json"
    if template or (model / "chat_template.jinja").is_file() or settings.is_file() and "chat_template" in json.loads(settings.read_text()):
        return None
    return f"{model} has no chat template; --chat-template FILE gives one"


def main():
    parser = argparse.ArgumentParser(
        prog="scripts/pictures", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Writes board.png (1280 x 800, by a headless Chromium), top.svg and talk.svg (100 x 30 characters).\nExamples:\n"
               "  scripts/quickstart && scripts/pictures\n"
               "  scripts/pictures runs/smollm2_word_problems --model models/SmolLM2-135M-Instruct --only talk")
    parser.add_argument("run", metavar="RUN_DIR", nargs="?", default="runs/quickstart", help="run folder (default: %(default)s)")
    parser.add_argument("--model", metavar="DIR", help="model to talk with (default: RUN_DIR/checkpoint/latest/hf)")
    parser.add_argument("--chat-template", metavar="FILE", type=pathlib.Path, help="for a model without one, such as the quickstart's")
    parser.add_argument("--ask", metavar="TEXT", action="append", help="question, may be repeated (default: two word problems)")
    parser.add_argument("--out", metavar="DIR", default="docs/pictures", help="folder of the pictures (default: %(default)s)")
    parser.add_argument("--only", metavar="NAME,...", help="these pictures alone, of board, top and talk (default: all that the run has)")
    parser.add_argument("--program", metavar="FILE", default="build/release/tandem", help="(default: %(default)s)")
    args = parser.parse_args()
    wanted = (args.only or "board,top,talk").split(",")
    run, out, program = pathlib.Path(args.run), pathlib.Path(args.out), pathlib.Path(args.program).resolve()
    if unknown := set(wanted) - {"board", "top", "talk"}:
        sys.exit(f"pictures: --only {','.join(sorted(unknown))}: the names are board, top and talk")
    if not (run / "config.yaml").is_file():
        sys.exit(f"pictures: {run} is no run folder. Make one first: scripts/quickstart, or tandem run RECIPE --run-dir {run}")
    if not program.is_file():
        sys.exit(f"pictures: no program at {program}. Build it first: scripts/build release tandem")
    model = pathlib.Path(args.model) if args.model else run / "checkpoint/latest/hf"
    if "talk" in wanted and (lack := lack_for_talk(model, args.chat_template)):
        if args.only or args.model:
            sys.exit(f"pictures: no talk: {lack}")
        print(f"talk.svg: left out: {lack}")
        wanted.remove("talk")
    out.mkdir(parents=True, exist_ok=True)
    if "board" in wanted:
        picture_of_board(program, run, out)
    if "top" in wanted:
        (out / "top.svg").write_text(picture_of_top(program, run))
    if "talk" in wanted:
        (out / "talk.svg").write_text(picture_of_talk(program, model, args.chat_template, args.ask or QUESTIONS))
    for name in wanted:
        path = out / (name + (".png" if name == "board" else ".svg"))
        print(f"{path}: {path.stat().st_size / 1000:.1f} KB")


if __name__ == "__main__":
    main()
