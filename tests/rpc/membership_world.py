"""A job whose workers come and go one by one, in this process, over a network that can be cut."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from telegrad import rpc
from telegrad.rendezvous import Coordinator, JobAddress
from telegrad.rpc import seams
from telegrad.testing import FaultPlan, FaultyNetwork, FaultyTransport, leaks
from telegrad.testing.faults import KillableTransport
from telegrad.transport import (
    GrpcTransport,
    InprocNetwork,
    InprocTransport,
    Transport,
    make_token,
    shared_loop_thread,
)
from tests.rpc import remote_code
from tests.rpc.agent.joining import make_agent

__all__ = ["Heard", "World", "who"]

T = TypeVar("T")

LIMIT = 20.0


def who(agent: seams.AgentCore, to: str | rpc.WorkerInfo) -> object:
    """Asks a worker for its name."""
    return seams.call(agent, to, remote_code.who).wait(LIMIT)


class Heard:
    """What the callbacks of one agent were told, in order."""

    def __init__(self, agent: seams.AgentCore) -> None:
        self._events: queue.Queue[tuple[str, Any]] = queue.Queue()
        with seams.use_agent(agent):
            self.remove = [
                rpc.on_join(lambda worker: self._events.put(("join", worker))),
                rpc.on_leave(lambda worker: self._events.put(("leave", worker))),
                rpc.on_loss(lambda worker, error: self._events.put(("loss", (worker, error)))),
            ]

    def next(self) -> tuple[str, Any]:
        """Waits for the next event."""
        return self._events.get(timeout=LIMIT)

    def names(self) -> list[str]:
        """What was told up to now and not read yet, as `join w1`."""
        found = []
        while not self._events.empty():
            what, value = self._events.get()
            found.append(f"{what} {(value[0] if what == 'loss' else value).name}")
        return found


class World:
    """A coordinator and the workers that join it.

    Args:
        kind: "inproc" or "grpc".
        size: World size.
        faults: Of the network; none by default.
        options: For each worker.
    """

    def __init__(
        self, kind: str, size: int, *, faults: FaultPlan | None = None, **options: Any
    ) -> None:
        self.size = size
        self.network = FaultyNetwork(faults)
        self._inproc = InprocNetwork() if kind == "inproc" else None
        self._options = {"timeout": LIMIT, "init_timeout": LIMIT, **options}
        self._token = make_token()
        self._pool = ThreadPoolExecutor(8)
        self._agents: list[seams.AgentCore] = []
        self._transports: dict[seams.AgentCore, KillableTransport] = {}
        self._loop = shared_loop_thread().acquire()
        self.coordinator = Coordinator(
            [self._transport("coordinator")],
            job="world",
            token=self._token,
            world_size=size,
            lost_after=self._options.get("lost_after", 10.0),
        )
        self.endpoint = self.coordinator.start()[0]

    def join(self, rank: int, *, late: bool = False, **options: Any) -> seams.AgentCore:
        """Joins as w{rank}; blocks until that worker may start."""
        name = f"w{rank}"
        transport = KillableTransport(self._transport(name))
        address = JobAddress(
            host="test",
            port=0,
            rank=-1 if late else rank,
            world_size=0 if late else self.size,
            job="world",
            hosts_store=False,
            endpoint=self.endpoint,
            late=late,
        )
        agent = make_agent(
            address,
            name=name,
            options=rpc.RpcOptions(**{**self._options, **options}),
            token=self._token,
            transports=[transport],
        )
        self._agents.append(agent)
        self._transports[agent] = transport
        return agent

    def start(self, rank: int, **options: Any) -> Future[seams.AgentCore]:
        """Joins in a thread."""
        return self._pool.submit(self.join, rank, **options)

    def join_all(self, **options: Any) -> list[seams.AgentCore]:
        """Has all ranks join."""
        joining = [self.start(rank, **options) for rank in range(self.size)]
        return [each.result(LIMIT) for each in joining]

    def submit(self, func: Callable[..., T], *args: Any, **kwargs: Any) -> Future[T]:
        """Runs a function in a thread."""
        return self._pool.submit(func, *args, **kwargs)

    def kill(self, agent: seams.AgentCore) -> None:
        """Breaks everything that a worker has, as the end of its process does."""
        self._loop.run(self._transports[agent].kill(), LIMIT)

    def drop(self, agent: seams.AgentCore) -> None:
        """Has the coordinator give up a worker, as after a silence that was too long."""
        seats = self.coordinator._membership._seats.items()
        (session,) = [each for each, seat in seats if seat.member.info == agent.info]
        self.coordinator._exchange.fence(session, "silent for longer than a test would wait")

    def wait_until_dropped(self, name: str) -> None:
        """Waits until the coordinator has given a worker up; its peers may have so before."""
        leaks.wait_until_gone(
            "members",
            lambda: [each for each in self.coordinator.members if each.info.name == name],
        )

    def close(self) -> None:
        """Ends all."""
        self.network.heal()
        for each in [self.submit(agent.shutdown, graceful=False) for agent in self._agents]:
            each.result(LIMIT)
        self.coordinator.close()
        self._pool.shutdown()
        self._loop.release()

    def _transport(self, name: str) -> Transport:
        inner = GrpcTransport() if self._inproc is None else InprocTransport(self._inproc)
        return FaultyTransport(inner, self.network, name=name)
