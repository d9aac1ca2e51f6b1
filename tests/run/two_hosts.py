# SPDX-License-Identifier: Apache-2.0
"""Two network namespaces that stand for two machines: each with its own loopback and host name, joined by one link."""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess

PREFIX = "tandem-"
SUBNET = "10.77.0.0/24"
# What mpirun calls to start its daemon on another machine: AGENT ADDRESS COMMAND...
AGENT = """#!/bin/sh
case $1 in
  {addresses[0]}) name={names[0]} ;;
  {addresses[1]}) name={names[1]} ;;
  *) echo "no machine has $1" >&2; exit 1 ;;
esac
shift
exec ip netns exec "$name" unshare --uts sh -c 'hostname "$0"; eval "$1"' "$name" "$*"
"""


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def remove(name):
    """Ends what runs in a namespace of ours and deletes it; its end of the link goes with it."""
    with contextlib.suppress(subprocess.CalledProcessError):
        for pid in subprocess.run(["ip", "netns", "pids", name], check=True, capture_output=True, text=True).stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        ip("netns", "del", name)


def remove_left_over():
    """Namespaces of tests that were killed."""
    for name in os.listdir("/run/netns") if os.path.isdir("/run/netns") else ():
        found = re.fullmatch(PREFIX + r"(\d+)-[ab]", name)
        if found and not os.path.exists(f"/proc/{found[1]}"):
            remove(name)


class TwoHosts:
    """Errors: Unavailable says why there can be none here."""

    class Unavailable(Exception):
        pass

    def __init__(self, scratch):
        if not shutil.which("ip") or not shutil.which("unshare"):
            raise self.Unavailable("no ip (package iproute2) or unshare here")
        self.names = [f"{PREFIX}{os.getpid()}-{end}" for end in "ab"]
        self.links = ["link-a", "link-b"]
        self.addresses = ["10.77.0.1", "10.77.0.2"]
        self.agent = pathlib.Path(scratch) / "agent"
        self.hostfile = pathlib.Path(scratch) / "hosts"
        self.agent.write_text(AGENT.format(addresses=self.addresses, names=self.names))
        self.agent.chmod(0o755)

    def hold(self, first, second):
        """So many ranks, unless mpirun is told to deal them in another way."""
        self.hostfile.write_text("".join(f"{address} slots={slots}\n" for address, slots in zip(self.addresses, (first, second))))

    def __enter__(self):
        remove_left_over()
        try:
            for name in self.names:
                ip("netns", "add", name)
            ip("link", "add", self.links[0], "netns", self.names[0], "type", "veth", "peer", "name", self.links[1], "netns", self.names[1])
            for name, link, address in zip(self.names, self.links, self.addresses):
                ip("-n", name, "addr", "add", address + "/24", "dev", link)
                for each in ("lo", link):
                    ip("-n", name, "link", "set", each, "up")
        except subprocess.CalledProcessError as error:
            self.__exit__()
            raise self.Unavailable("network namespaces are not allowed here: " + error.stderr.strip()) from error
        return self

    def __exit__(self, *_):
        for name in self.names:
            remove(name)

    def on_first(self, command):
        """The command as the first machine runs it."""
        return ["ip", "netns", "exec", self.names[0], "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', self.names[0], *command]

    def mpi(self, mpi, *options):
        """scripts/mpi on the first machine, for ranks on both. mpi: as run_folder.mpi gives it."""
        return self.on_first([mpi[0], "--hostfile", str(self.hostfile), *options, "--mca", "plm_rsh_agent", str(self.agent), *mpi[1:]])

    def set_link(self, state):
        """state: up or down, for both machines."""
        ip("-n", self.names[1], "link", "set", self.links[1], state)

    def crossed_bytes(self):
        """What has gone over the link so far, both ways."""
        command = ["ip", "netns", "exec", self.names[0], "cat", f"/sys/class/net/{self.links[0]}/statistics/tx_bytes",
                   f"/sys/class/net/{self.links[0]}/statistics/rx_bytes"]
        return sum(int(word) for word in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
