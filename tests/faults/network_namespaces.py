"""Cuts that the kernel makes: each worker in a network namespace of its own, all on one bridge.

    worker0 ──┐                 link down      both ways, and nobody is told
    worker1 ──┼── bridge        wrong address  what one sends to another goes nowhere: one way
    worker2 ──┘

Where namespaces may not be made a test is skipped, and says why.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

__all__ = ["Bridge"]

NOWHERE = "02:00:00:00:00:fe"
PREFIX = "tg"  # and the process that made it


class Bridge:
    """Namespaces `0` to `n - 1` with a worker each, and one with the bridge between them."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._prefix = f"{PREFIX}{os.getpid()}"
        self._made: list[str] = []

    def make(self) -> None:
        """Makes all; skips the test where that is not allowed."""
        if shutil.which("ip") is None:
            pytest.skip("there is no `ip` command to make network namespaces with")
        _remove_leftovers()
        for name in ("bridge", *map(str, range(self._n))):
            made = subprocess.run(
                ["ip", "netns", "add", self.space(name)], capture_output=True, text=True
            )
            if made.returncode != 0:
                pytest.skip(f"network namespaces may not be made here: {made.stderr.strip()}")
            self._made.append(name)
        self.ip("bridge", "link add br0 type bridge")
        self.ip("bridge", "link set br0 up")
        for r in range(self._n):
            peer = f"link add port{r} type veth peer name eth0 netns {self.space(str(r))}"
            self.ip("bridge", peer)
            self.ip("bridge", f"link set port{r} master br0")
            self.ip("bridge", f"link set port{r} up")
            self.ip(str(r), f"addr add {self.address(r)}/24 dev eth0")
            self.ip(str(r), "link set eth0 up")
            self.ip(str(r), "link set lo up")

    def close(self) -> None:
        """Takes the namespaces away, and with them all links."""
        for name in self._made:
            subprocess.run(["ip", "netns", "delete", self.space(name)], check=True)

    def space(self, name: str) -> str:
        """Returns the name of a namespace."""
        return f"{self._prefix}-{name}"

    def python(self, r: int) -> list[str]:
        """Returns the words that start this interpreter in the namespace of a worker."""
        return ["ip", "netns", "exec", self.space(str(r)), sys.executable]

    @staticmethod
    def address(r: int) -> str:
        """Returns the address of a worker."""
        return f"10.213.0.{r + 1}"

    def ip(self, name: str, command: str) -> None:
        """Runs `ip` in a namespace."""
        words = ["ip", "-n", self.space(name), *command.split()]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"

    def cut(self, r: int) -> None:
        """Cuts a worker off from all."""
        self.ip("bridge", f"link set port{r} down")

    def heal(self, r: int) -> None:
        """Connects it again."""
        self.ip("bridge", f"link set port{r} up")

    def cut_one_way(self, source: int, to: int) -> None:
        """Lets nothing come through from one worker to another."""
        words = f"neigh replace {self.address(to)} lladdr {NOWHERE} dev eth0 nud permanent"
        self.ip(str(source), words)

    def heal_one_way(self, source: int, to: int) -> None:
        """Takes `cut_one_way` back."""
        words = f"-n {self.space(str(source))} neigh delete {self.address(to)} dev eth0"
        subprocess.run(["ip", *words.split()], capture_output=True)


def _remove_leftovers() -> None:
    """Takes away the namespaces of runs that were killed: they outlive their processes."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True)
    for line in listed.stdout.splitlines():
        name = line.partition(" ")[0]
        made = re.fullmatch(rf"{PREFIX}(\d+)-\w+", name)
        if made and not Path(f"/proc/{made[1]}").exists():
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)  # or another run
