"""The sessions of the launcher's workers, and the process that ends them with the launcher.

This file is run by its path with `python -I -S` and imports the standard library alone, so that
it starts in some 10 ms:

    worker_process.py DIRECTORY   reads `+pid` lines from stdin; when the launcher dies, ends the
                                  sessions of these processes and removes DIRECTORY; a last line
                                  `done` means that nothing is left to do
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator

PROC = "/proc"


def watch(directory: str) -> None:
    """Waits for the end of the launcher; then ends the sessions it left behind."""
    leaders: set[int] = set()
    for line in sys.stdin:
        if line.startswith("+"):
            leaders.add(int(line[1:]))
        elif line.strip() == "done":
            return
    kill_sessions(leaders, signal.SIGKILL)
    shutil.rmtree(directory, ignore_errors=True)


def session_members(leaders: Iterable[int]) -> list[int]:
    """Returns the living processes whose session was begun by one of the leaders."""
    wanted = set(leaders)
    return [pid for pid, session in _sessions() if session in wanted]


def kill_sessions(leaders: Iterable[int], signal_number: int) -> list[int]:
    """Signals every living process of these sessions; returns those that it signalled."""
    members = session_members(leaders)
    for pid in members:
        try:
            os.kill(pid, signal_number)
        except ProcessLookupError:
            continue
    return members


def exit_code(pid: int) -> int | None:
    """Returns the exit code of a child, which it does not reap: -n if signal n ended it.

    Returns None while it runs.

    Raises:
        ChildProcessError: It was reaped before, so that its number may be another's.
    """
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _sessions() -> Iterator[tuple[int, int]]:
    """Yields the living processes of this host with their sessions, as `/proc` or `ps` tells."""
    if os.path.exists(f"{PROC}/self/stat"):
        yield from ((int(pid), _session_of(pid)) for pid in os.listdir(PROC) if pid.isdigit())
        return
    with os.popen("ps -A -o pid= -o stat=") as lines:
        for pid, state in map(str.split, lines):
            with contextlib.suppress(OSError):  # it has ended meanwhile, or may not be asked
                session = os.getsid(int(pid))
                yield int(pid), -1 if state.startswith("Z") else session


def _session_of(pid: str) -> int:
    """Returns the session of a living process; -1 for a dead one."""
    try:
        with open(f"{PROC}/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return -1
    state, session = fields[0], int(fields[3])
    return -1 if state in (b"Z", b"X") else session


if __name__ == "__main__":
    watch(sys.argv[1])
