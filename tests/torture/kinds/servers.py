# SPDX-License-Identifier: Apache-2.0
"""What comes over a socket: a server of scores that misbehaves, and clients that would break the page of a run."""
import contextlib
import http.client
import json
import pathlib
import re
import signal
import socket
import struct
import threading
import time

import run_folder as rf
from kinds.runs import GROUPS, STEPS, check_like, question

TIMEOUT_S, RETRIES = 1, 1


def head(length, status="200 OK", more=""):
    return f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{more}\r\n".encode()


def whole(body, **options):
    return head(len(body), **options) + body


def scores_of(batch):
    return [float(sum(map(completion.count, "01234"))) for completion in batch["completions"]]


def reply(scores):
    return whole(json.dumps({"scores": scores}).encode())


# Each takes the peer, the right scores and a generator of random numbers, and fails the post.
FAULTS = {
    "silent": lambda peer, scores, rng: time.sleep(2 * TIMEOUT_S),
    "closed": lambda peer, scores, rng: None,
    "reset": lambda peer, scores, rng: peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)),
    "cut": lambda peer, scores, rng: peer.sendall(reply(scores)[:rng.randrange(1, len(reply(scores)) - 1)]),
    "slow": lambda peer, scores, rng: drip(peer, reply(scores), 0.05),
    "endless_body": lambda peer, scores, rng: flood(peer, head(1 << 40), b"[" * 65536),
    "endless_headers": lambda peer, scores, rng: flood(peer, b"HTTP/1.1 200 OK\r\n", b"X-Pad: " + b"a" * 1000 + b"\r\n"),
    "endless_line": lambda peer, scores, rng: flood(peer, b"HTTP/1.1 200 OK\r\nX: ", b"a" * 65536),
    "endless_chunks": lambda peer, scores, rng: flood(peer, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                                                      b"1000\r\n" + b" " * 4096 + b"\r\n"),
    "no_chunks": lambda peer, scores, rng: peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nxyz\r\n0\r\n\r\n"),
    "noise": lambda peer, scores, rng: peer.sendall(rng.randbytes(rng.randrange(1, 5000))),
    "status": lambda peer, scores, rng: peer.sendall(whole(b"\x1b]0;owned\x07", status=rng.choice(
        ["500 No", "404 Not Found", "204 No Content", "999 \x1b[31m", "302 Found"]), more="Location: http://127.0.0.1:1/\r\n")),
    "text": lambda peer, scores, rng: peer.sendall(whole(rng.choice(
        [b"", b"null", b"[]", b"{}", b'{"scores": 1}', b'{"scores": [', b"\xff\xfe", b"[" * 100000, b'{"scores": "\\ud800"}']))),
    "few": lambda peer, scores, rng: peer.sendall(reply(scores[:-1])),
    "many": lambda peer, scores, rng: peer.sendall(reply(scores * 1000)),
    "no_numbers": lambda peer, scores, rng: peer.sendall(whole(rng.choice(
        [b'{"scores": [NaN, 1, 1, 1]}', b'{"scores": [1e999, 1, 1, 1]}', b'{"scores": ["1", "1", "1", "1"]}',
         b'{"scores": [{}, {}, {}, {}]}', b'{"scores": [[], [], [], []]}']))),
}


# Of these, those that another attempt may mend.
PASSING = ("silent", "closed", "reset", "cut", "slow")


def drip(peer, data, pause_s):
    for byte in data:
        peer.sendall(bytes([byte]))
        time.sleep(pause_s)


def flood(peer, begin, again):
    peer.sendall(begin)
    end = time.monotonic() + 10 * TIMEOUT_S
    while time.monotonic() < end:
        peer.sendall(again)


class ScoreServer:
    """Scores well, but for the batch whose prompt is `bad`: so many `posts` of it meet `fault`."""

    def __init__(self, rng):
        self.rng, self.bad, self.fault, self.posts = rng, None, None, 0
        self.asked = threading.Event()  # for the bad batch
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/score"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):  # it is closed at the end
            while True:
                threading.Thread(target=self.answer, args=[self.listener.accept()[0]], daemon=True).start()

    def answer(self, peer):
        with peer, contextlib.suppress(OSError):  # the post gives up
            stream, length = peer.makefile("rb"), 0
            for line in iter(stream.readline, b"\r\n"):
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            batch = json.loads(stream.read(length))
            scores = scores_of(batch)
            tries = any("A made-up answer" in text for text in batch["completions"])  # before the run: nothing can be lost yet
            if self.bad and self.bad in batch["prompts"][0] and self.posts > 0 and not tries:
                self.posts -= 1
                self.asked.set()
                FAULTS[self.fault](peer, scores, self.rng)
            else:
                peer.sendall(reply(scores))

    def close(self):
        self.listener.close()


def served_recipe(place, server):
    rows = place.folder / "rows.jsonl"
    rows.write_text("".join(json.dumps({"question": question(r), "answer": "1"}) + "\n" for r in range(STEPS * GROUPS)))
    return rf.tiny_recipe(place.folder / "recipe.yaml", reward__rule="", reward__url=server.url, reward__timeout_s=TIMEOUT_S,
                          reward__http_retries=RETRIES, data__train=str(rows), data__eval="", data__shuffle=False, run__steps=STEPS,
                          checkpoint__every_steps=0)


def fails_for_good(place, server, arguments, row):
    """No concluded step is lost."""
    server.fault, server.posts = place.rng.choice(sorted(FAULTS)), RETRIES + 1
    begin = time.monotonic()
    out = place.run(arguments)
    assert out.returncode in (2, 3), f"{server.fault}: exit code {out.returncode}\n{out.stderr[-2500:]}"
    assert time.monotonic() - begin < 30 + (RETRIES + 1) * TIMEOUT_S, f"{server.fault}: ended after {time.monotonic() - begin:.0f} s"
    assert "\x1b" not in out.stderr, f"{server.fault}: bytes of the server reach the terminal"
    saved = re.search(r"after step (\d+), which is saved", out.stderr)
    assert saved, f"{server.fault}: {out.stderr[-2500:]}"
    assert int(saved[1]) >= row // GROUPS, f"{server.fault}: row {row} is of step {row // GROUPS + 1}, and step {saved[1]} is saved"
    server.posts = 0
    place.done([*arguments, "--resume"])


def recovers(place, server, arguments, row):
    """The run notices nothing but the time."""
    server.fault, server.posts = place.rng.choice(PASSING), RETRIES
    out = place.done(arguments)
    assert server.posts == 0 and "asked again" in out.stderr, f"{server.fault}: {out.stderr[-2500:]}"


def told_to_end(place, server, arguments, row):
    """A signal does not wait for the server."""
    server.fault, server.posts = "silent", RETRIES + 1
    process = place.start([*arguments, "--set", "reward.timeout_s=50"])
    assert server.asked.wait(40), "the run does not come to the bad batch"
    process.send_signal(place.rng.choice([signal.SIGINT, signal.SIGTERM]))
    begin = time.monotonic()
    _, err = process.communicate(timeout=40)
    assert process.returncode == 130 and time.monotonic() - begin < 10, (process.returncode, time.monotonic() - begin, err[-2000:])
    server.posts = 0
    place.done([*arguments, "--resume"])


def score_servers(place):
    """A server fails at a random batch in a random way: for good, for a while, or when the run is told to end. The run ends as if nothing
    had happened, after a resume where one is needed."""
    server = ScoreServer(place.rng)
    try:
        recipe = served_recipe(place, server)
        ranks = place.rng.choice([[], ["--ranks", "2"]])

        def make(folder):
            place.done(["run", recipe, "--run-dir", folder / "run", *ranks])
        other, folder = place.once("whole_served_" + "_".join(ranks), make) / "run", place.folder / "run"
        row = place.rng.randrange(STEPS * GROUPS)
        server.bad = question(row)
        meets = place.rng.choice([fails_for_good, fails_for_good, recovers, told_to_end])
        meets(place, server, ["run", recipe, "--run-dir", folder, *ranks], row)
        check_like(folder, other)
    finally:
        server.close()


def odd_path(rng):
    return "/" + rng.choice(["../" * 50 + "etc/passwd", "%2e%2e/" * 20 + "etc/passwd", "a" * 100000, "api/" * 5000, "\x00",
                             "metrics?" + "&a=1" * 9000, "api/metrics?from_line=-1", "api/metrics?from_line=99999999999999999999",
                             "api/samples?step=nan", "//127.0.0.1:1/"])


def request_of(rng):
    """Bytes that no browser sends."""
    path, pad = odd_path(rng), "X-Pad: " + "a" * 1000 + "\r\n"
    return rng.choice([
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost: {rng.choice(['evil.example', '', 'a' * 70000])}\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300000000\r\n\r\n" + "a" * 200000,
        "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + "1000\r\n" + "a" * 4096 + "\r\n" * 20,
        f"{rng.choice(['PUT', 'DELETE', 'TRACE', 'CONNECT', 'GET' * 5000])} / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\n" + pad * 200,
        "GET / HTTP/1.1\r\nHost: localhost\r\nRange: bytes=" + "0-1," * 9000 + "\r\n\r\n",
        "GET / HT", "\r\n" * 1000]).encode("latin-1") + (rng.randbytes(200) if rng.random() < 0.3 else b"")


def served_run(place):
    recipe = rf.tiny_recipe(place.folder / "recipe.yaml", run__steps=3, data__eval="")

    def make(folder):
        place.done(["run", recipe, "--run-dir", folder / "run"])
    return place.once("shown", make) / "run"


def status_of(port, host):
    """Of the page, asked for as a browser that was led to this address by `host` does."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        client.putrequest("GET", "/", skip_host=True)
        client.putheader("Host", host)
        client.endheaders()
        answer = client.getresponse()
        return answer.status, answer.read()
    finally:
        client.close()


def press(port, rng):
    """Opens odd requests; while they are open, others are answered."""
    with contextlib.ExitStack() as opened:
        for _ in range(rng.choice([1, 20, 200])):
            peer = opened.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", port), timeout=20)))
            peer.settimeout(0.1)
            with contextlib.suppress(OSError):  # it refuses to read on
                peer.sendall(request_of(rng))
                if rng.random() < 0.3:
                    assert b"root:" not in peer.recv(65536), "a file that is none of the run's"
        asked = time.monotonic()
        status, page = status_of(port, f"127.0.0.1:{port}")
        assert status == 200 and b"<html" in page.lower(), status
        assert time.monotonic() - asked < 20, f"others wait {time.monotonic() - asked:.0f} s"
        status, page = status_of(port, rng.choice(["evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "[::2]"]))
        assert status == 403 and b"<html" not in page.lower(), status


def listen_to(process):
    """What it says so far, line by line."""
    lines = []
    for stream in (process.stderr, process.stdout):
        threading.Thread(target=lambda stream=stream: lines.extend(iter(stream.readline, "")), daemon=True).start()
    return lines


def clients(place):
    """Clients of the page that are slow, half, huge or forged: it goes on to answer others within seconds, and tells them nothing. A run
    that it shows meanwhile goes on."""
    rng = place.rng
    run, folder = None, served_run(place)
    if rng.random() < 0.5:
        folder = place.folder / "run"
        run = place.start(["run", rf.tiny_recipe(place.folder / "recipe.yaml", run__steps=100000, data__eval=""), "--run-dir", folder])
        listen_to(run)  # its pipes must not fill
        rf.wait_for(lambda: (folder / "metrics.jsonl").exists(), run)
    board = place.start(["board", folder])
    try:
        lines = listen_to(board)
        found = lambda: re.search(r"127\.0\.0\.1:(\d+)", "".join(lines))  # noqa: E731
        rf.wait_until(found, 20, "the board names no port")
        press(int(found()[1]), rng)
        if run:
            steps = lambda: (folder / "metrics.jsonl").read_bytes().count(b"\n")  # noqa: E731
            before = steps()
            rf.wait_until(lambda: steps() > before, 20, "the run stands still")
        peak_kib = int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{board.pid}/status").read_text())[1])
        assert peak_kib < 1 << 20, f"{peak_kib} KiB"
    finally:
        ends = [rf.end(process, 2) for process in (board, run) if process]
    for code, err in ends:
        assert code in (0, 130), (code, err[-2000:])


TRIALS = {"score_servers": score_servers, "clients": clients}
