"""Hosts that are network namespaces, joined by bridges, and all that may go wrong between them.

    host 0  eth0 ── port0 ──┐             cut            link down, both ways
    host 1  eth0 ── port1 ──┼── bridge 0  cut_one_way    a neighbour that is nobody
    host 2  eth0 ── port2 ──┘             blackhole      a route that swallows
            eth1 ── ...       ── bridge 1 limit, lose    bandwidth by tbf, loss by a filter
                                          let_nothing_in connections that are asked for from outside

They are made below a process of their own, as root or in a user namespace, and end with it. Where
they cannot be made the test is skipped and says why; anything else that goes wrong fails it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import pytest

from tests.hosts.packet_filter import dropping, losing

__all__ = ["Hosts"]

ROOT = Path(__file__).parents[2]
NEEDED = ("ip", "tc", "unshare", "nsenter", "mount")
NOWHERE = "02:00:00:00:00:fe"
READY = "ready"
# A fresh /run, as `ip netns` keeps its names there; `cat` ends when the test does.
HOLD = f"mount -t tmpfs tmpfs /run && echo {READY} && exec cat"
# What programs say when the kernel lacks something, or this user may not have it.
CANNOT = (
    "not permitted",
    "permission denied",
    "read-only file system",
    "not supported",
    "unknown device type",
    "kind is unknown",
    "classifier not found",
    "no space left on device",  # how the limit on namespaces is told
    "failed to load",
    "function not implemented",
)
SECONDS = 20.0  # for any one command
BOOT_ID = "/proc/sys/kernel/random/boot_id"
BOOTS = uuid.UUID(int=213)  # what those of the hosts are drawn from


class Hosts:
    """Hosts `0` to `n - 1`, each with an interface on every network; host names are `node0` and so on.

    Args:
        n: How many.
        networks: How many bridges there are between them.
        family: 4 or 6, the only addresses that they have.
        one_machine: True if they share the boot id, as containers of one machine do. Otherwise
            each has its own, as machines do.
    """

    def __init__(
        self,
        n: int,
        *,
        networks: int = 1,
        family: Literal[4, 6] = 4,
        one_machine: bool = False,
    ) -> None:
        self._n, self._networks, self._family = n, networks, family
        self._one_machine = one_machine
        self._enter: list[str] = []
        self._filtered: set[tuple[str, str]] = set()
        self._holder: subprocess.Popen[str] | None = None

    # -- making them ---------------------------------------------------------------------------

    @classmethod
    @contextlib.contextmanager
    def made(
        cls,
        n: int,
        *,
        networks: int = 1,
        family: Literal[4, 6] = 4,
        one_machine: bool = False,
    ) -> Iterator[Hosts]:
        """Makes hosts; takes them away afterwards, also where only some could be made."""
        hosts = cls(n, networks=networks, family=family, one_machine=one_machine)
        try:
            hosts.make()
            yield hosts
        finally:
            hosts.close()

    def make(self) -> None:
        """Makes all; skips the test where that cannot be."""
        missing = [name for name in NEEDED if shutil.which(name) is None]
        if missing:
            pytest.skip(f"there is no `{missing[0]}` command to make network namespaces with")
        self._hold()
        for name in ("bridge", *map(str, range(self._n))):
            self.run([*self._enter, "ip", "netns", "add", name])
        for k in range(self._networks):
            self.ip("bridge", f"link add br{k} type bridge")
            self.ip("bridge", f"link set br{k} up")
        for r in range(self._n):
            self.ip(str(r), "link set lo up")
            for k in range(self._networks):
                self._plug_in(r, k)

    def close(self) -> None:
        """Takes all away."""
        if self._holder is not None:
            self._holder.communicate(timeout=SECONDS)  # which closes its input

    def _hold(self) -> None:
        """Starts the process that the namespaces belong to."""
        said = []
        for user in [[], ["-U", "-r"]] if os.geteuid() == 0 else [["-U", "-r"]]:
            holder = subprocess.Popen(
                ["unshare", *user, "-m", "-n", "sh", "-c", HOLD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C is for the test
            )
            assert holder.stdout is not None
            if holder.stdout.readline().strip() == READY:
                self._holder = holder
                as_user = ["-U", "--preserve-credentials"] if user else []
                self._enter = ["nsenter", "-t", str(holder.pid), *as_user, "-m", "-n"]
                return
            said.append(holder.communicate(timeout=SECONDS)[1].strip())
        pytest.skip(f"network namespaces may not be made here: {'; '.join(said)}")

    def _plug_in(self, r: int, k: int) -> None:
        port = self._port(r, k)
        self.ip("bridge", f"link add {port} type veth peer name eth{k} netns {r}")
        self.ip("bridge", f"link set {port} master br{k} up")
        nodad = " nodad" if self._family == 6 else ""
        self.ip(str(r), f"addr add {self.address(r, k)}/{self._bits}{nodad} dev eth{k}")
        self.ip(str(r), f"link set eth{k} up")

    # -- what they are called ------------------------------------------------------------------

    def address(self, r: int, network: int = 0) -> str:
        """Returns the address of a host on a network."""
        if self._family == 6:
            return f"fd00:213:{network + 1}::{r + 1}"
        return f"10.213.{network}.{r + 1}"

    @property
    def _bits(self) -> int:
        return 64 if self._family == 6 else 24

    @staticmethod
    def _port(r: int, network: int) -> str:
        return f"port{r}" if network == 0 else f"port{r}n{network}"

    # -- running something on them -------------------------------------------------------------

    def python(self, r: int) -> list[str]:
        """Returns the words that start this interpreter on a host."""
        return [*self.on(r), sys.executable]

    def on(self, r: int, *, names: Path | None = None) -> list[str]:
        """Returns the words that start a program on a host, in the directory of who starts it.

        Args:
            r: Which host.
            names: What it is to see as `/etc/hosts`.
        """
        bind = "" if names is None else f"mount --bind {names} /etc/hosts && "
        if not self._one_machine:
            boot = f"/run/boot{r}"
            bind += f"echo {uuid.uuid5(BOOTS, str(r))} > {boot} && "
            bind += f"mount --bind {boot} {BOOT_ID} && "
        script = f'{bind}hostname node{r} && cd "$0" && exec "$@"'
        inside = ["unshare", "--uts", "sh", "-c", script, os.getcwd()]
        return [*self._enter, "ip", "netns", "exec", str(r), *inside]

    def ip(self, name: str, command: str) -> None:
        """Runs `ip` on a host, or on the `bridge`; skips the test where the kernel cannot do it."""
        self.run([*self._enter, "ip", "-n", name, *command.split()])

    def tc(self, name: str, command: str) -> None:
        """Runs `tc` on a host, or on the `bridge`; skips the test where the kernel cannot do it."""
        self.run([*self._enter, "tc", "-n", name, *command.split()])

    @staticmethod
    def run(words: Sequence[str]) -> str:
        """Runs a command, returns its output; skips where the kernel or this user cannot do it.

        Raises:
            AssertionError: It failed for another reason.
        """
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS)
        said = done.stderr.strip()
        if done.returncode != 0 and any(each in said.lower() for each in CANNOT):
            pytest.skip(f"not on this machine, or not by this user: {' '.join(words)}: {said}")
        assert done.returncode == 0, f"{' '.join(words)}: {said}"
        return done.stdout

    # -- cuts ----------------------------------------------------------------------------------

    def cut(self, r: int, network: int = 0) -> None:
        """Cuts a host off from all others of a network; nobody is told."""
        self.ip("bridge", f"link set {self._port(r, network)} down")

    def heal(self, r: int, network: int = 0) -> None:
        """Connects it again."""
        self.ip("bridge", f"link set {self._port(r, network)} up")

    def cut_one_way(self, source: int, to: int) -> None:
        """Lets nothing come through from one host to another; nobody is told."""
        words = f"neigh replace {self.address(to)} lladdr {NOWHERE} dev eth0 nud permanent"
        self.ip(str(source), words)

    def heal_one_way(self, source: int, to: int) -> None:
        """Takes `cut_one_way` back."""
        self.ip(str(source), f"neigh delete {self.address(to)} dev eth0")

    def blackhole(self, source: int, to: int) -> None:
        """Has a route swallow what one host sends to another: programs there get an error."""
        self.ip(str(source), f"route add blackhole {self.address(to)}")

    def heal_blackhole(self, source: int, to: int) -> None:
        """Takes `blackhole` back."""
        self.ip(str(source), f"route del blackhole {self.address(to)}")

    def end_connections(self, r: int) -> None:
        """Ends all TCP connections of a host at once, at its own end; the others hear nothing if cut."""
        if not self.end_present_connections(r):  # that is how it is told
            pytest.skip("this kernel lets no program end the connections of another one")

    def end_present_connections(self, r: int) -> int:
        """Does the same where there may be none; returns how many it has ended."""
        words = [*self._enter, "ip", "netns", "exec", str(r), "ss", "-HtK"]
        return len(self.run(words).splitlines())

    # -- slow, lossy and guarded links -----------------------------------------------------------

    def limit(self, r: int, rate: str, *, burst: str = "16kb", queue: str = "64kb") -> None:
        """Has what a host sends and receives be no faster than a rate, such as `8mbit`.

        What waits takes 64 KiB at most, whatever the rate is: a queue of so many seconds would be too
        full once the rate falls, and drop all that comes until it has shrunk, which is a cut.

        Args:
            r: Which host.
            rate: The rate.
            burst: The most that leaves at once; a fast link needs more than a slow one.
            queue: The most that waits.
        """
        words = f"root tbf rate {rate} burst {burst} limit {queue}"
        for name, device in self._ends(r):
            self.tc(name, f"qdisc replace dev {device} {words}")

    def unlimit(self, r: int) -> None:
        """Takes `limit` back."""
        for name, device in self._ends(r):
            self.tc(name, f"qdisc delete dev {device} root")

    def lose(self, r: int, share: float) -> None:
        """Loses a share of the packets that a host sends and receives."""
        for name, device in self._ends(r):
            self._filter(name, device, losing(share))

    def let_nothing_in(self, r: int, port: int | None = None) -> None:
        """Drops connections that others want to open to a host, as a firewall does without a word.

        Args:
            r: Which host.
            port: The only one that is guarded; None for all.
        """
        self._filter(str(r), "eth0", dropping(self._family, port))

    def unfilter(self, r: int) -> None:
        """Takes `lose` and `let_nothing_in` back."""
        for end in [end for end in self._ends(r) if end in self._filtered]:
            self._filtered.remove(end)
            self.tc(end[0], f"qdisc delete dev {end[1]} clsact")

    def _ends(self, r: int) -> list[tuple[str, str]]:
        return [(str(r), "eth0"), ("bridge", self._port(r, 0))]

    def _filter(self, name: str, device: str, program: str) -> None:
        self.tc(name, f"qdisc replace dev {device} clsact")
        self._filtered.add((name, device))
        words = ["protocol", "all", "bpf", "direct-action", "bytecode", program]
        self.run(
            [*self._enter, "tc", "-n", name, "filter", "add", "dev", device, "ingress", *words]
        )
