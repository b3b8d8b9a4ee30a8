"""LocalWorkers: more workers for a program that runs already, as a notebook does.

agent = rpc.init_rpc("me")                       # a job of one
with launch.LocalWorkers(2) as workers:          # and of three
    rpc.rpc_sync(workers.names[0], np.square, (x,))
"""

from __future__ import annotations

import base64
import os
import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import final

from telegrad.distributed import invite, settle
from telegrad.launch.env import FORK_SUPPORT, available_cores, thread_limits
from telegrad.launch.local_process import LocalProcess
from telegrad.launch.script import LOADING, own_script

__all__ = ["LocalWorkers"]

START_SECONDS = 60.0  # two interpreters that import NumPy and gRPC take 1 s; a busy machine, 20
LEAVE_SECONDS = 5.0  # from the word to leave until the interpreter has ended, then it is killed
# What `telegrad run` says to its workers is not for those of one of them.
OWN_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TELEGRAD_JOB",
    "TELEGRAD_NAME",
)


@final
class LocalWorkers:
    """Processes on this host that join the job of this program and serve its calls.

    They serve the functions of the modules that this program has imported from outside the
    standard library and site-packages, and those of its script, which they import as
    multiprocessing's `spawn` does: what it does besides defining things belongs under
    `if __name__ == "__main__":`. A module that was changed is not imported again: make new workers.
    What they write comes out here, with their name in front.

    They have ranks and names of their own on top of the job's: `worker1`, `worker2` beside a
    program that is a job of one. They end when the block is left, when `close()` or
    `rpc.shutdown()` is called, and within a second when this process ends in any other way. Calls
    to one that ended raise WorkerLostError.

    Args:
        n: How many; by default as many as there are names.
        names: What they are called; by default `worker` and their rank.
        timeout: Seconds until all of them have joined, above 0.

    Raises:
        NotInitializedError: `rpc.init_rpc` was not called before.
        RendezvousError: One did not start; its words are in the message, and all are ended.
        DuplicateNameError: A worker of the job has one of the names.
        RuntimeError: A worker's own import of the script leads here.
        ValueError: The number and the names do not fit, or there are none.

    Attributes:
        names: Their names, by rank.
    """

    def __init__(
        self,
        n: int | None = None,
        *,
        names: Sequence[str] | None = None,
        timeout: float = START_SECONDS,
    ) -> None:
        _refuse_while_loading()
        wanted = _checked_names(n, names)
        deadline = time.monotonic() + _checked_timeout(timeout)
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards whether it is closed
        self._closed = False
        self._processes: list[LocalProcess] = []
        self.names: tuple[str, ...] = ()
        agent, invitation = invite()
        try:
            self._start(len(wanted), invitation)
            for process in self._processes:
                process.expect("ready", deadline, timeout)
            for process, name in zip(self._processes, wanted, strict=True):
                process.send("join", name=name)
                joined = process.expect("joined", deadline, timeout)
                process.name = joined["name"]
            for process in self._processes:
                process.send("settle")
            for process in self._processes:
                process.expect("settled", deadline, timeout)
            settle(agent)
        except BaseException:
            self._end(time.monotonic())
            raise
        self.names = tuple(process.name for process in self._processes)
        agent.after_close(self.close)

    def close(self) -> None:
        """Ends the workers: each finishes what it serves, for 2 s, and leaves. Idempotent."""
        with self._lock:
            if self._closed or self._pid != os.getpid():  # in a forked child they are not ours
                return
            self._closed = True
        for process in self._processes:
            process.leave()
        self._end(time.monotonic() + LEAVE_SECONDS)

    def __enter__(self) -> LocalWorkers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._closed:
            return f"<LocalWorkers {', '.join(self.names)}: closed>"
        states = [
            f"{process.name} (process {process.pid}{'' if process.living else ', ended'})"
            for process in self._processes
        ]
        return f"<LocalWorkers {', '.join(states)}>"

    def _start(self, n: int, invitation: bytes) -> None:
        environ = {key: value for key, value in os.environ.items() if key not in OWN_VARIABLES}
        environ = FORK_SUPPORT | environ | thread_limits(os.environ, n + 1, available_cores())
        for i in range(n):
            process = LocalProcess(environ, f"local {i + 1}")
            self._processes.append(process)
            process.send(
                "start",
                invitation=base64.b64encode(invitation).decode(),
                script=own_script(),
                arguments=sys.argv,
            )

    def _end(self, deadline: float) -> None:
        for process in self._processes:
            process.end(deadline)


def _refuse_while_loading() -> None:
    if LOADING in os.environ:
        raise RuntimeError(
            "this script starts LocalWorkers while one of them imports it; put what the program "
            'does under `if __name__ == "__main__":`, and leave the functions outside'
        )


def _checked_names(n: int | None, names: Sequence[str] | None) -> list[str]:
    """Returns a name for each worker; "" for one that the job gives."""
    if isinstance(names, str):
        raise TypeError(f"names must be a list of str (got {names!r}); write [{names!r}]")
    count = n if n is not None else len(names or ())
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"LocalWorkers takes a number of workers (got {n!r})")
    if count < 1:
        raise ValueError(
            f"LocalWorkers needs at least one worker (got {count}); write LocalWorkers(2)"
        )
    if names is not None and len(names) != count:
        raise ValueError(
            f"names must be as many as workers (names: {len(names)}, workers: {count})"
        )
    return list(names) if names is not None else [""] * count


def _checked_timeout(timeout: float) -> float:
    if not timeout > 0:
        raise ValueError(f"timeout must be above 0 seconds (got {timeout})")
    return min(timeout, threading.TIMEOUT_MAX)
