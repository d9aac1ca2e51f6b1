#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A reward server behind https: its certificate is trusted or refused with the reason, in the trial, in a run and by `tandem grade`; and
the system's OpenSSL, which speaks TLS, finds no function of another library that brings an OpenSSL of its own, as pyarrow's does."""
import collections
import http.server
import json
import os
import pathlib
import re
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time

import pyarrow
import pyarrow.parquet
import run_folder as rf
from run_folder import said

CERTIFICATES = rf.ROOT / "tests/fixtures/tls"
LINE = '{"response": "4", "gold": "4"}\n'
MIB = 1 << 20
# What OpenSSL may find elsewhere than in itself: the C library.
OF_THE_SYSTEM = re.compile(r"/(libc|libm|libdl|libpthread|libcrypto|libssl|ld-linux[\w-]*)\.so")


class Server:
    """Scores every answer 1, over TLS with the certificate of that name, or over plain http without one. `padding` makes replies longer."""

    def __init__(self, certificate):
        self.padding, self.posts, self.plain_after = 0, 0, None
        self.show(certificate)
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def setup(self):
                if server.plain_after is not None and server.posts >= server.plain_after and server.num_plain > 0:
                    server.num_plain -= 1  # as a proxy whose server is away
                elif server.context:
                    self.request.settimeout(60)
                    self.request = server.context.wrap_socket(self.request, server_side=True)
                super().setup()

            def log_message(self, *_):
                pass

            def do_POST(self):  # noqa: N802
                batch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.posts += 1
                body = json.dumps({"scores": [1.0] * len(batch["completions"])}).encode() + b" " * server.padding
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # a client that refuses the certificate
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def show(self, certificate):
        """What the next connections see."""
        self.context = None
        if certificate:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(CERTIFICATES / f"{certificate}.pem", CERTIFICATES / "key.pem")


class Rude:
    """Takes a connection, reads the beginning of a handshake, and then says nothing more, closes or breaks off."""

    def __init__(self, holds=False, breaks=False):
        self.breaks = breaks
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.holds, self.held = self.listener.getsockname()[1], holds, []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            peer, _ = self.listener.accept()
            peer.recv(1024)
            if self.holds:
                self.held.append(peer)
                continue
            if self.breaks:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()


def trusting(certificate=""):
    """The environment, with that certificate trusted beside none of the system's."""
    environment = {name: value for name, value in os.environ.items() if name not in ("SSL_CERT_FILE", "SSL_CERT_DIR")}
    return {**environment, "SSL_CERT_FILE": str(CERTIFICATES / f"{certificate}.pem")} if certificate else environment


def grade(port, host="localhost", options="http_retries=0"):
    return ["grade", "--rule", f"http(url=https://{host}:{port}/score,{options})"]


def check_trusted(program, scratch):
    """A certificate that SSL_CERT_FILE vouches for, by name and by address; replies near the bound."""
    server = Server("here")
    for host in ("localhost", "127.0.0.1"):
        out = program.done(grade(server.port, host), stdin=LINE, env=trusting("here"))
        assert json.loads(out.stdout)["score"] == 1.0, out.stdout
    server.padding = 16 * MIB - 4096
    out = program.done(grade(server.port), stdin=LINE, env=trusting("here"))
    assert json.loads(out.stdout)["score"] == 1.0, out.stdout[:200]
    server.padding = 64 * MIB
    program.refused(grade(server.port), 2, f"reward.url https://localhost:{server.port}/score", "more than 16", stdin=LINE,
                    env=trusting("here"))
    said("a trusted server scores")


def check_refused(program, scratch):
    """Each refusal is one line with the reason and the way out, at the first attempt."""
    server, begin = Server("here"), time.monotonic()
    address = f"reward.url https://localhost:{server.port}/score: "
    often = "http_retries=6"
    for trusted in ("", "elsewhere"):
        program.refused(grade(server.port, options=often), 2, address, "certificate is not trusted: self", "SSL_CERT_FILE=FILE", stdin=LINE,
                        env=trusting(trusted))
    server.show("elsewhere")
    program.refused(grade(server.port, options=often), 2, address, "certificate is for another name", stdin=LINE, env=trusting("elsewhere"))
    server.show("expired")
    program.refused(grade(server.port, options=often), 2, address, "certificate is not valid: certificate has expired", stdin=LINE,
                    env=trusting("expired"))
    server.show("")
    program.refused(grade(server.port, options=often), 2, address, "does not speak TLS", "http:// in place of https://", stdin=LINE,
                    env=trusting("here"))
    assert server.posts == 0 and time.monotonic() - begin < 20, "asked again in vain"
    said("certificates of nobody, of another name and of another time, and no TLS at all, are refused")


def check_plain_for_a_moment(program, scratch):
    """A server that spoke TLS answers in plain http: that is tried again, as a connection that is lost."""
    server, options = Server("here"), "http_retries=2"
    server.plain_after = 1
    for num_plain in (1, 2):
        server.posts, server.num_plain = 0, num_plain
        out = program.done(grade(server.port, options=options), stdin=LINE * 3, env=trusting("here"))
        assert [json.loads(line)["score"] for line in out.stdout.splitlines()] == [1.0] * 3 and server.num_plain == 0, out.stdout
        assert out.stderr.count("does not speak TLS); asked again") == num_plain, out.stderr
    server.posts, server.num_plain = 0, 1000
    program.refused(grade(server.port, options=options), 3, "does not speak TLS", "3 times", stdin=LINE * 2, env=trusting("here"))
    server.posts, server.plain_after, server.num_plain = 0, 0, 1000
    program.refused(grade(server.port, options=options), 2, "does not speak TLS", "http:// in place of https://", stdin=LINE,
        env=trusting("here"))
    assert server.num_plain == 999, "asked again in vain"
    said("plain http from a server that spoke TLS is tried again, and from one that never did is not")


def check_rude(program, scratch):
    """A handshake that ends, and one that never does."""
    silent = Rude(holds=True)
    for server, why in ((Rude(), "unexpected eof"), (Rude(breaks=True), "connection lost")):
        program.refused(grade(server.port), 3, f"localhost:{server.port}/score: no answer (TLS handshake failed: {why}", "1 times",
                        stdin=LINE, env=trusting("here"))
    begin = time.monotonic()
    program.refused(grade(silent.port, options="http_retries=0,timeout_s=1"), 3, "no answer (not whole within 1", stdin=LINE,
                    env=trusting("here"))
    assert time.monotonic() - begin < 15, "the deadline counts in a handshake"
    said("a handshake that fails, or hangs, is told")


def check_run(program, scratch):
    """`tandem run`: refused in the trial, before a folder is made; trained; ended where the certificate changes."""
    server, folder = Server("here"), pathlib.Path(scratch) / "run"
    recipe = rf.tiny_recipe(pathlib.Path(scratch) / "tls.yaml", reward__url=f"https://localhost:{server.port}/score", run__steps=3,
                            data__eval="")
    run = ["run", recipe, "--set", "reward.rule=", "--set", "reward.pattern=", "--run-dir", folder]
    program.refused(run, 2, "certificate is not trusted", "SSL_CERT_FILE", env=trusting())
    assert not folder.exists()
    program.done(run, env=trusting("here"))
    assert rf.metrics(folder)[-1]["reward/mean"] == 1.0 and server.posts > 3, (rf.metrics(folder)[-1], server.posts)
    begin = server.posts
    process = program.start([*run, "--resume", "--steps", "100000"], env=trusting("here"))
    rf.wait_for(lambda: server.posts > begin + 4, process)
    server.show("elsewhere")
    out, err = process.communicate(timeout=120)
    lines = [line for line in err.splitlines() if line.startswith("tandem: error: ")]
    assert process.returncode == 2 and len(lines) == 1 and "certificate is not trusted" in lines[0], (process.returncode, err[-2000:])
    said("a run trains by a server behind https")


def foreign_bindings(command, place, **options):
    """{(library, where it found a function): how many} of the system's OpenSSL in what a command loads, by the loader's own word."""
    place.mkdir()
    options["env"] = {**os.environ, **options.get("env", {}), "LD_DEBUG": "bindings", "LD_DEBUG_OUTPUT": str(place / "log")}
    subprocess.run(command, capture_output=True, encoding="utf-8", timeout=240, check=True, **options)
    found, openssl = collections.Counter(), 0
    for log in place.iterdir():
        with open(log, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                match = re.search(r"binding file (\S*/lib(?:crypto|ssl)\.so\S*) \[0\] to (\S+) \[0\]", line)
                openssl += match is not None
                if match and not OF_THE_SYSTEM.search(match[2]):
                    found[pathlib.Path(match[1]).name, pathlib.Path(match[2]).name] += 1
        log.unlink()
    return found, openssl


def check_bindings(program, scratch):
    """No library's OpenSSL stands in for the system's: in the program, and in Python beside pyarrow, whichever comes first."""
    scratch, package = pathlib.Path(scratch), pathlib.Path(program.tandem).parent / "python"
    rows = scratch / "sums.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"question": f"{i}+1=", "answer": str(i + 1)} for i in range(8)]), rows)
    recipe = rf.tiny_recipe(scratch / "parquet.yaml", data__train=str(rows), data__eval="", run__steps=1)
    found, openssl = foreign_bindings([program.tandem, "run", recipe, "--run-dir", scratch / "parquet"], scratch / "program")
    assert openssl > 1000 and not found, (openssl, found)
    for i, modules in enumerate(("tandem, ssl, pyarrow.parquet", "pyarrow.parquet, tandem, ssl")):
        code = f"import {modules}; ssl.create_default_context()"
        found, openssl = foreign_bindings([sys.executable, "-c", code], scratch / f"python{i}", env={"PYTHONPATH": str(package)})
        assert openssl > 1000 and not found, (modules, openssl, found)
    said("the system's OpenSSL is whole, in the program and in Python")


CHECKS = {"trusted": check_trusted, "refused": check_refused, "plain": check_plain_for_a_moment, "rude": check_rude, "run": check_run,
    "bindings": check_bindings}


if __name__ == "__main__":
    rf.run_checks(__doc__, CHECKS)
