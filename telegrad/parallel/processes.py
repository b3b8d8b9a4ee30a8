"""Processes of this host that run one function and form a job, as a program starts them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class ProcessContext(AbstractContextManager["ProcessContext"], Protocol):
    """The processes of one `spawn(join=False)`, by rank.

    When a `with` block on it ends, `close` ends those that still run.

    Example:
        >>> from telegrad import parallel
        >>> with parallel.spawn(print, ("is my rank",), join=False) as context:
        ...     len(context.pids()), context.join()
        [0] 0 is my rank
        (1, True)
    """

    @abstractmethod
    def pids(self) -> list[int]:
        """Returns the process ids, by rank."""

    @abstractmethod
    def join(self, timeout: float | None = None) -> bool:
        """Waits until all processes have ended, or the first one has failed.

        When one fails, the others get SIGTERM, and SIGKILL after 5 s; each later call raises the
        same failure. An error that interrupts this wait, such as a KeyboardInterrupt, ends all of
        them in the same way.

        Args:
            timeout: Seconds; None for no limit.

        Returns:
            True if all have ended without an error, also if asked again; False if one still runs
            after `timeout`.

        Raises:
            Exception: The error that the function raised at the rank that failed first. A note has
                the rank, the process and the traceback there. It has its own class if that may
                travel and is imported here; else it is a RemoteError.
            WorkerLostError: A process ended before the function did: it was killed by a signal, or
                it exited with a code other than 0. Both are in the message.
            InvalidUseError: No process has failed, but `close`, or an error that interrupted an
                earlier wait, has ended some.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends the processes that still run: SIGTERM, and SIGKILL after 5 s. Idempotent."""


def spawn(
    fn: Callable[..., object],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    *,
    join: bool = True,
    daemon: bool = False,
) -> ProcessContext | None:
    """Runs `fn(rank, *args)` in new processes of this host, which form a job.

    `rpc.init_rpc()` and `collectives.init_process_group()` need no arguments in `fn`: they join a
    job of `nprocs` workers. Each process is a new interpreter, which imports this program's script
    as `__mp_main__`, or the module of `fn`. So the call of `spawn` belongs under
    `if __name__ == "__main__":`, and `fn` to the top level of a module. The output of the processes
    appears here, each line with its rank in front. When this process ends, whatever ends it, the
    processes do, too.

    Args:
        fn: A function; its value is dropped.
        args: The further arguments. They may hold what arguments of calls may, and are copied. But
            arrays of `arrays.shared_empty`, and views of them, are the same memory in all
            processes, whatever their size; the program must order the accesses.
        nprocs: The number of processes.
        join: True to wait for their end; False to return at once.
        daemon: With `join=False`: True if the end of this program ends the processes; False if the
            program waits for their end, unless an uncaught error or Ctrl-C has ended it.

    Returns:
        None once all have ended without an error; with `join=False` the processes.

    Raises:
        InvalidUseError: One of the processes imports the script, which calls `spawn` outside its
            main part.
        EncodeError: `fn` or an argument cannot travel; no process was started.
        TypeError: `fn` is no plain function, or `args` is no tuple.
        ValueError: `nprocs` is below 1.
        Exception: Any error of `ProcessContext.join`.

    Example:
        >>> from telegrad import parallel
        >>> parallel.spawn(print, ("is my rank",))
        [0] 0 is my rank
    """
    from telegrad.launch.spawned import start  # noqa: PLC0415 - a door

    context = start(fn, args, nprocs, daemon=daemon)
    if not join:
        return context
    with context:
        context.join()
    return None
