"""What a test sees of processes from outside: who is left of a session, which ports are open."""

from __future__ import annotations

import os
from pathlib import Path

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


def listening_ports(pid: int) -> list[int]:
    """Returns the ports on which a process listens, as anybody on the machine may see them."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(ports)
