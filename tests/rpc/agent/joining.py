"""How a worker joins the jobs of these tests; importable by processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from telegrad import rpc
from telegrad._distributed import settle
from telegrad.compose import make_agent
from telegrad.rendezvous import JobAddress
from telegrad.rpc import seams
from telegrad.transport import GrpcTransport, Transport
from tests.rpc import remote_code
from tests.rpc.stream import stream_code  # noqa: F401 - what workers run
from tests.rpc.verbs import form_code  # noqa: F401 - what workers run

__all__ = ["SERVE", "join", "join_and_serve", "make_agent", "settle"]

# The program of a worker in a process of its own; the arguments come through its standard input.
SERVE = (
    "import pickle, sys; from tests.rpc.agent.joining import join_and_serve; "
    "join_and_serve(*pickle.load(sys.stdin.buffer))"
)


def join(
    rank: int,
    size: int,
    endpoint: str,
    token: bytes,
    options: rpc.RpcOptions,
    transports: Callable[[], Sequence[Transport]],
    *,
    late: bool = False,
) -> seams.AgentCore:
    """Joins as worker w{rank}."""
    address = JobAddress(
        host="test",
        port=0,
        rank=rank,
        world_size=size,
        job="test",
        hosts_store=False,
        endpoint=endpoint,
        late=late,
    )
    return make_agent(
        address,
        name=f"w{rank}",
        options=options,
        token=token,
        transports=transports(),
        control_transports=transports(),
    )


def join_and_serve(
    rank: int,
    size: int,
    endpoint: str,
    token: bytes,
    options: rpc.RpcOptions,
    gate: str | None = None,
) -> None:
    """The main function of a worker in a process: serves until all have shut down.

    Before it does so itself, it waits until the gate is open, if there is one.
    """
    remote_code.gates.begin()
    agent = join(rank, size, endpoint, token, options, lambda: [GrpcTransport()])
    if gate is not None:
        remote_code.gates(gate).wait()
    agent.shutdown()
