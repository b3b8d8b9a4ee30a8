"""Cluster: a whole job in one test, in one process or in processes of their own.

    with Cluster(3) as cluster:                       # three agents in this process
        cluster.run(say_hello)                        # on each worker; results by rank
        cluster.call(0, train, data)                  # on one
        cluster.kill(2)                               # without a goodbye

    with Cluster(3, faults=FaultPlan(seed=7, drop=0.01)) as cluster:
        cluster.run(train)                            # over a network that loses messages
        cluster.network.partition("worker0")          # until heal()

A function runs with its worker's agent as the ambient one, so the verbs of `telegrad.rpc` and
`telegrad.dist_autograd` work in it as they do in a program.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, final

from telegrad.errors import InvalidUseError
from telegrad.rpc import RpcOptions
from telegrad.testing.agents_here import AgentsHere
from telegrad.testing.fault_plan import FaultPlan
from telegrad.testing.faults import FaultyNetwork
from telegrad.testing.processes import Processes
from telegrad.testing.workers import Workers

P = ParamSpec("P")
T = TypeVar("T")

# For one `run` or `call`: below the time limit of a test, so that this error comes first.
LIMIT_SECONDS = 45.0
# For the other workers to end once one of them failed: they may wait for it in vain.
GRACE_SECONDS = 5.0
CLOSE_SECONDS = 15.0


@final
class Cluster:
    """A job of n workers named `worker0`, `worker1`, ...

    Args:
        n: The number of workers.
        processes: True if each worker is a process of its own, over gRPC on loopback. Functions,
            arguments and results must then be what a call could carry, and functions importable.
            False if all are agents of this process, over the in-process transport.
        options: The options of each worker's `init_rpc`; a token is made if they have none.
        limit: Seconds for one `run` or `call`.
        faults: The faults of the network; `FaultPlan()` for a network with only those that
            `network` is told to make. None for a sound network.

    Raises:
        ValueError: n is below 1.

    Example:
        >>> import math
        >>> from telegrad import rpc
        >>> with Cluster(2) as cluster:
        ...     cluster.run(lambda: rpc.rpc_sync("worker1", math.sqrt, (4.0,)))
        [2.0, 2.0]
    """

    def __init__(
        self,
        n: int,
        *,
        processes: bool = False,
        options: RpcOptions | None = None,
        limit: float = LIMIT_SECONDS,
        faults: FaultPlan | None = None,
    ) -> None:
        if n < 1:
            raise ValueError(f"a cluster needs at least one worker (got {n})")
        self._n = n
        self._limit = limit
        self._living = list(range(n))
        self._closed = threading.Lock()
        self._network = None if faults is None or processes else FaultyNetwork(faults)
        self._faults = faults
        self._workers: Workers
        if processes:
            self._workers = Processes(n, options, faults)
        else:
            self._workers = AgentsHere(n, options, self._network)
        try:
            self._workers.start()
        except BaseException:
            self._workers.close(graceful=False, timeout=CLOSE_SECONDS)
            raise

    @property
    def living(self) -> list[int]:
        """The ranks that were not killed."""
        return list(self._living)

    @property
    def network(self) -> FaultyNetwork:
        """The faulty network between the workers.

        Raises:
            InvalidUseError: The cluster has none, or each of its processes has its own.
        """
        if self._network is not None:
            return self._network
        if self._faults is None:
            raise InvalidUseError("this cluster's network is sound; write Cluster(n, faults=...)")
        raise InvalidUseError(
            "each process of this cluster has a faulty network of its own; a function that the "
            "cluster runs there gets it from testing.faulty_network()"
        )

    def run(self, func: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> list[T]:
        """Runs a function on every living worker at once.

        Returns:
            The results, by rank.

        Raises:
            Exception: The error of the first worker that failed; a note names the worker.
            TimeoutError: It took longer than the cluster's limit.
        """
        return self._gather(self._living, func, args, kwargs)

    def call(self, rank: int, func: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a function on one worker and returns its result.

        Raises:
            ValueError: There is no such worker, or it was killed.
            Exception: Any error that the function raised.
            TimeoutError: It took longer than the cluster's limit.
        """
        self._check(rank)
        return self._gather([rank], func, args, kwargs)[0]

    def kill(self, rank: int) -> None:
        """Ends a worker at once: no goodbye, no clean-up; a process gets SIGKILL.

        Raises:
            ValueError: There is no such worker, or it was killed before.
        """
        self._check(rank)
        self._living.remove(rank)
        self._workers.kill(rank)

    def close(self, *, graceful: bool = True) -> None:
        """Shuts all workers down; idempotent."""
        if self._closed.acquire(blocking=False):
            self._workers.close(graceful=graceful, timeout=CLOSE_SECONDS)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(graceful=error is None)

    def _check(self, rank: int) -> None:
        if rank not in self._living:
            raise ValueError(f"no worker of rank {rank} lives in this cluster ({self._living})")

    def _gather(
        self,
        ranks: Sequence[int],
        func: Callable[..., T],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> list[T]:
        if kwargs:
            raise TypeError("a cluster's functions take positional arguments only")
        began = time.monotonic()
        futures = {r: self._workers.submit(r, func, args) for r in ranks}
        _, pending = wait(futures.values(), self._limit, return_when=FIRST_EXCEPTION)
        if pending and time.monotonic() - began < self._limit:
            _, pending = wait(pending, GRACE_SECONDS)
        self._raise_first(futures)
        if pending:
            late = [f"worker{r}" for r, future in futures.items() if future in pending]
            raise TimeoutError(
                f"{func.__qualname__} still runs on {', '.join(late)} after {self._limit:g} s"
                f"{'' if self._faults is None else f' over {self._network or self._faults!r}'}"
            )
        return [future.result() for future in futures.values()]

    def _raise_first(self, futures: dict[int, Future[Any]]) -> None:
        for r, future in futures.items():
            error = future.exception() if future.done() else None
            if error is not None:
                error.add_note(f"raised on worker{r} of the cluster")
                if self._faults is not None:
                    error.add_note(f"the network was faulty: {self._network or self._faults!r}")
                raise error
