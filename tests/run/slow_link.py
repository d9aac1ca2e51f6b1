# SPDX-License-Identifier: Apache-2.0
"""Two network namespaces joined by a slow link: the machines of two_hosts.py, but each packet passes a relay in user space that holds it
back, and a token bucket (tc tbf) bounds the rate. A kernel without netem has no other delay."""
import collections
import ctypes
import fcntl
import os
import select
import struct
import subprocess
import threading
import time

from two_hosts import PREFIX, TwoHosts, ip, remove, remove_left_over

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000


def _tun_in(namespace, name):
    """The descriptor of a new tun device in that namespace. In a thread of its own, whose namespace nobody else has."""
    made = []

    def make():
        with open(f"/run/netns/{namespace}", encoding="utf-8") as at:
            if ctypes.CDLL(None, use_errno=True).setns(at.fileno(), CLONE_NEWNET) != 0:
                return
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22s", name.encode(), IFF_TUN | IFF_NO_PI, b""))
        made.append(fd)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if not made:
        raise OSError(f"no tun device in {namespace}")
    return made[0]


class SlowLink(TwoHosts):
    """As TwoHosts. Each packet takes `delay_s` longer, each way."""

    def __init__(self, scratch, delay_s, mbit_per_s):
        super().__init__(scratch)
        self.delay_s, self.mbit_per_s = delay_s, mbit_per_s
        self.fds, self.over, self.relay = [], threading.Event(), None
        self.bytes = 0

    def __enter__(self):
        remove_left_over()
        try:
            for name, link, address in zip(self.names, self.links, self.addresses):
                ip("netns", "add", name)
                self.fds.append(_tun_in(name, link))
                ip("-n", name, "addr", "add", address + "/24", "dev", link)
                for each in ("lo", link):
                    ip("-n", name, "link", "set", each, "up")
                subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", link, "root", "tbf", "rate", f"{self.mbit_per_s}mbit", "burst",
                                "128kb", "latency", "400ms"], check=True, capture_output=True, text=True)
        except (subprocess.CalledProcessError, OSError) as error:
            self.__exit__()
            raise self.Unavailable(f"a link by tun and tbf is not allowed here: {getattr(error, 'stderr', None) or error}") from error
        self.relay = threading.Thread(target=self._relay, daemon=True)
        self.relay.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        if self.relay:
            self.relay.join()
        for fd in self.fds:
            os.close(fd)
        for name in self.names:
            remove(name)

    def _relay(self):
        """Packets in the order in which they came, each at its time."""
        held = collections.deque()  # (when, to, packet); all wait equally long
        while not self.over.is_set():
            wait = max(0.0, held[0][0] - time.monotonic()) if held else 0.05
            for fd in select.select(self.fds, [], [], wait)[0]:
                for _ in range(64):
                    try:
                        packet = os.read(fd, 65536)
                    except BlockingIOError:
                        break
                    held.append((time.monotonic() + self.delay_s, self.fds[fd == self.fds[0]], packet))
            now = time.monotonic()
            while held and held[0][0] <= now:
                _, to, packet = held.popleft()
                self.bytes += len(packet)
                try:
                    os.write(to, packet)
                except BlockingIOError:
                    pass  # as a full switch

    def on(self, index, command):
        """The command as that machine runs it."""
        return ["ip", "netns", "exec", self.names[index], *[str(word) for word in command]]


__all__ = ["SlowLink", "PREFIX"]
