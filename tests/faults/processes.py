"""What a test sees of processes from outside: who is left of a session, which ports are open."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from typing import NamedTuple

from telegrad.testing import leaks

LISTENS = "0A"


def session_members(leader: int) -> list[str]:
    """Returns the processes of a session that still run, each with its command."""
    found = []
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit():
            continue
        try:
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
            command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it ended meanwhile
        if fields[0] != "Z" and int(fields[3]) == leader:
            found.append(f"{directory.name} {command}")
    return found


def assert_nothing_stays(*leaders: int) -> None:
    """Waits until every process of these sessions has ended."""
    leaks.wait_until_gone(
        "processes", lambda: [each for s in leaders for each in session_members(s)]
    )


class Listener(NamedTuple):
    """One listening socket."""

    host: str
    port: int


def listeners(pid: int) -> list[Listener]:
    """Returns the sockets on which a process listens, as anybody on the machine may see them."""
    own = _sockets_of(pid)
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == LISTENS and rest[5] in own:
                host, _, port = local.partition(":")
                found.append(Listener(_address(host), int(port, 16)))
    return found


def _sockets_of(pid: int) -> set[str]:
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(entry.readlink().name.removeprefix("socket:[").rstrip("]"))
        except FileNotFoundError:  # of this very listing
            continue
    return inodes


def _address(words: str) -> str:
    """The kernel writes 32-bit words, each in the byte order of the machine."""
    packed = b"".join(
        int(words[i : i + 8], 16).to_bytes(4, "little") for i in range(0, len(words), 8)
    )
    if len(packed) == 4:
        return socket.inet_ntop(socket.AF_INET, packed)
    mapped = ipaddress.IPv6Address(packed).ipv4_mapped
    return str(mapped or ipaddress.IPv6Address(packed))
