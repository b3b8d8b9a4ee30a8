"""Who listens on this machine's TCP ports, as the kernel says."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from typing import NamedTuple

LISTENS = "0A"


class Listener(NamedTuple):
    """One listening socket."""

    host: str
    port: int


def listeners(pid: int | None = None) -> list[Listener]:
    """Returns those of a process, or of all."""
    own = None if pid is None else _sockets_of(pid)
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == LISTENS and (own is None or rest[5] in own):
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
