"""The workers of a cluster as agents of this process, over the in-process transport.

Only the loop thread is shared: messages are bytes, and each function runs in a thread and a Context
of its own, in which its worker's agent is the ambient one.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, final

from telegrad.compose import make_agent
from telegrad.errors import TelegradError
from telegrad.rendezvous import JobAddress
from telegrad.rpc import RpcOptions
from telegrad.rpc.seams import AgentCore, use_agent
from telegrad.testing.faults import FaultyNetwork, FaultyTransport, KillableTransport
from telegrad.testing.job import Job
from telegrad.testing.worker_process import run_function
from telegrad.testing.workers import Workers
from telegrad.transport import InprocNetwork, InprocTransport, Transport, shared_loop_thread

KILL_SECONDS = 5.0


@final
class AgentsHere(Workers):
    """n agents of one process and their coordinator.

    Args:
        n: The number of agents.
        options: The options of each of them.
        faulty: The faulty network for their messages; None for a sound one.
    """

    def __init__(
        self, n: int, options: RpcOptions | None, faulty: FaultyNetwork | None = None
    ) -> None:
        self._n = n
        self._job = Job(n, options)
        self._network = InprocNetwork()
        self._faulty = faulty
        self._transports: dict[int, KillableTransport] = {}
        self._agents: dict[int, AgentCore] = {}
        self._loop = shared_loop_thread().acquire()

    def start(self) -> None:
        """Makes the agents, each in a thread, since each waits for all the others."""
        self._job.listen(self._transport(""))
        joining = {r: _in_thread(f"join-{r}", self._join, r) for r in range(self._n)}
        wait(joining.values())
        failed = [f.exception() for f in joining.values() if f.exception() is not None]
        self._agents = {r: f.result() for r, f in joining.items() if f.exception() is None}
        if failed and failed[0] is not None:
            raise failed[0]

    def submit(self, rank: int, func: Callable[..., Any], args: Sequence[Any]) -> Future[Any]:
        """Runs the function with the arguments themselves; only calls inside it copy."""
        return _in_thread(f"worker{rank}", self._run, self._agents[rank], func, args)

    def kill(self, rank: int) -> None:
        """Breaks everything that the worker has open; its threads find out by themselves."""
        self._loop.run(self._transports[rank].kill(), KILL_SECONDS)

    def close(self, *, graceful: bool, timeout: float) -> None:
        """Shuts all agents down together; those that were killed without a goodbye."""
        leaving = [
            _in_thread(f"leave-{r}", self._leave, r, agent, graceful, timeout)
            for r, agent in self._agents.items()
        ]
        wait(leaving)
        self._agents.clear()
        self._job.close()
        self._loop.release()

    def _join(self, rank: int) -> AgentCore:
        transport = self._transports[rank] = KillableTransport(self._transport(f"worker{rank}"))
        address = JobAddress(
            host="",
            port=0,
            rank=rank,
            world_size=self._n,
            job=self._job.name,
            hosts_store=False,
            endpoint=self._job.endpoint,
        )
        agent = make_agent(
            address,
            name=f"worker{rank}",
            options=self._job.options,
            token=self._job.token,
            transports=[transport],
        )
        if self._faulty is not None:
            agent.attachments.attach(self._faulty)
        return agent

    def _transport(self, name: str) -> Transport:
        inner = InprocTransport(self._network)
        return inner if self._faulty is None else FaultyTransport(inner, self._faulty, name=name)

    def _leave(self, rank: int, agent: AgentCore, graceful: bool, timeout: float) -> None:
        try:
            agent.shutdown(graceful=graceful and not self._transports[rank].dead, timeout=timeout)
        except (TelegradError, TimeoutError):
            agent.shutdown(graceful=False)
            raise

    @staticmethod
    def _run(agent: AgentCore, func: Callable[..., Any], args: Sequence[Any]) -> Any:
        with use_agent(agent):
            return run_function(func, args)


def _in_thread(name: str, func: Callable[..., Any], *args: Any) -> Future[Any]:
    """Runs a function in a daemon thread of its own and a Context of its own."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(contextvars.Context().run(func, *args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=f"cluster-{name}", daemon=True).start()
    return future
