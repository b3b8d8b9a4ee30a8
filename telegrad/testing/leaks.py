"""Leak checks: nothing that a test starts outlives it.

A check compares the state after a block with the state before it. Things that are about to end get
a bounded time for it; the error names what stays. Threads and children that belong to libraries for
the life of the process, and end with it, are no leaks; they are listed here.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from telegrad.dist_autograd.seams import Container
from telegrad.rpc.seams import current_agent
from telegrad.testing.cluster import Cluster

__all__ = [
    "LeakError",
    "child_processes",
    "held_references",
    "no_leaked_children",
    "no_leaked_descriptors",
    "no_leaked_references",
    "no_leaked_tasks",
    "no_leaked_threads",
    "open_descriptors",
    "wait_until_gone",
]


# Whatever ends by itself after a shutdown takes milliseconds; on loaded cores it may take seconds,
# and a machine may stand still for some.
GONE_WITHIN = 20.0
POLL_SECONDS = 0.005

# gRPC's poller and pytest-timeout's timer live as long as their library wants.
FOREIGN_THREADS = ("_poll_wrapper", "pytest_timeout", "asyncio-waitpid", "ThreadPoolExecutor")
# multiprocessing starts these once per process, and a cluster of processes the last one.
FOREIGN_CHILDREN = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "telegrad.testing.forked_program",
)
# gRPC keeps its wake-up descriptors, Python its random source and trackers' pipes.
FOREIGN_DESCRIPTORS = ("/dev/urandom", "anon_inode:[eventfd]", "anon_inode:[eventpoll]")


class LeakError(AssertionError):
    """Something was started and not stopped.

    Example:
        >>> import threading
        >>> stop = threading.Event()
        >>> try:
        ...     with no_leaked_threads(within=0.01):
        ...         threading.Thread(target=stop.wait, name="forgotten").start()
        ... except LeakError as error:
        ...     print(error)
        leaked threads (after 0.01 s): forgotten
        >>> stop.set()
    """


def wait_until_gone(
    what: str, left: Callable[[], Iterable[object]], within: float = GONE_WITHIN
) -> None:
    """Waits until `left` returns nothing.

    Args:
        what: The word for the leaked things in the error: `threads`.
        left: Returns the things that are still there; called until it returns none.
        within: Seconds to wait at most.

    Raises:
        LeakError: Something was still there; the message lists it.
    """
    deadline = time.monotonic() + within
    while remaining := list(left()):
        if time.monotonic() > deadline:
            listed = ", ".join(str(item) for item in remaining)
            raise LeakError(f"leaked {what} (after {within:g} s): {listed}")
        del remaining  # else it holds what it lists, and nothing of that ever goes
        time.sleep(POLL_SECONDS)


@contextmanager
def no_leaked_threads(within: float = GONE_WITHIN) -> Iterator[None]:
    """Checks that every thread that the block starts has ended soon after it.

    Example:
        >>> import threading
        >>> with no_leaked_threads():
        ...     thread = threading.Thread(target=print, args=("done",))
        ...     thread.start()
        ...     thread.join()
        done
    """
    before = set(threading.enumerate())
    yield

    def left() -> list[str]:
        new = set(threading.enumerate()) - before
        return [t.name for t in new if not any(word in t.name for word in FOREIGN_THREADS)]

    wait_until_gone("threads", left, within)


@contextmanager
def no_leaked_tasks(loop: asyncio.AbstractEventLoop, within: float = GONE_WITHIN) -> Iterator[None]:
    """Checks that every task that the block starts on a loop has ended soon after it.

    The loop runs in another thread, as telegrad's own does.

    Example:
        >>> import asyncio, threading
        >>> loop = asyncio.new_event_loop()
        >>> thread = threading.Thread(target=loop.run_forever)
        >>> thread.start()
        >>> with no_leaked_tasks(loop):
        ...     asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()
        >>> _ = loop.call_soon_threadsafe(loop.stop)
        >>> thread.join()
        >>> loop.close()
    """
    before = asyncio.all_tasks(loop)
    yield
    wait_until_gone("tasks", lambda: asyncio.all_tasks(loop) - before, within)


def open_descriptors() -> dict[int, str]:
    """Returns this process' open descriptors, each with the target it refers to."""
    found: dict[int, str] = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[int(entry.name)] = os.readlink(entry)
        except OSError:
            continue  # the descriptor that lists the directory
    return found


@contextmanager
def no_leaked_descriptors(within: float = GONE_WITHIN) -> Iterator[None]:
    """Checks that every file, socket and pipe that the block opens is closed soon after it.

    A library that the block imports or uses for the first time may keep some for good; use it once
    before the block.

    Example:
        >>> import os
        >>> with no_leaked_descriptors():
        ...     os.close(os.open("/dev/null", os.O_RDONLY))
    """
    before = set(open_descriptors().items())
    yield

    def left() -> list[str]:
        gc.collect()
        new = set(open_descriptors().items()) - before
        return [f"{fd} -> {to}" for fd, to in sorted(new) if to not in FOREIGN_DESCRIPTORS]

    wait_until_gone("descriptors", left, within)


def child_processes() -> dict[int, str]:
    """Returns the children of this process that were not waited for, with their command lines."""
    found: dict[int, str] = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            numbers = (task / "children").read_text().split()
        except OSError:
            continue  # the thread ended
        for number in numbers:
            found[int(number)] = _command_line(number)
    return found


def _command_line(number: str) -> str:
    try:
        words = Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
    return words.strip() or "(defunct)"


@contextmanager
def no_leaked_children(within: float = GONE_WITHIN) -> Iterator[None]:
    """Checks that every process that the block starts has ended and was waited for.

    Example:
        >>> import subprocess
        >>> with no_leaked_children():
        ...     _ = subprocess.run(["true"], check=True)
    """
    before = set(child_processes())
    yield

    def left() -> list[str]:
        return [
            f"{number} ({command})"
            for number, command in child_processes().items()
            if number not in before and not any(word in command for word in FOREIGN_CHILDREN)
        ]

    wait_until_gone("child processes", left, within)


# -- leak checks across a cluster: RRefs, autograd contexts, and calls ---------------------------


def held_references() -> dict[str, int]:
    """Returns the numbers of things that the ambient agent holds for or from others, by kind.

    Example:
        >>> from telegrad import rpc
        >>> with rpc.init_rpc("a"):
        ...     rref = rpc.RRef([1, 2])
        ...     held_references()["owned RRefs"]
        1
    """
    agent = current_agent()
    statistics = agent.statistics()
    return {
        "owned RRefs": statistics.owned_rrefs,
        "user RRefs": statistics.user_rrefs,
        "pending calls": statistics.pending_calls,
        "autograd contexts": len(agent.attachments[Container]),
    }


@contextmanager
def no_leaked_references(cluster: Cluster, within: float = GONE_WITHIN) -> Iterator[None]:
    """Checks that the block leaves no worker of a cluster with more than it held before.

    Args:
        cluster: The cluster; its living workers are asked, but none that the block kills.
        within: Seconds for things that are about to go.

    Raises:
        LeakError: A worker holds more; the message names the worker and the kind.

    Example:
        >>> import math
        >>> from telegrad import rpc
        >>> from telegrad.testing import Cluster
        >>> with Cluster(2) as cluster, no_leaked_references(cluster):
        ...     cluster.call(0, rpc.rpc_sync, "worker1", math.sqrt, (4.0,))
        2.0
    """
    before = {r: cluster.call(r, held_references) for r in cluster.living}
    yield

    def left() -> list[str]:
        return [
            f"worker{r} holds {count - before[r][kind]} more {kind}"
            for r in cluster.living
            for kind, count in cluster.call(r, held_references).items()
            if count > before[r][kind]
        ]

    wait_until_gone("references", left, within)
