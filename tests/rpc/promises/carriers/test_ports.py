"""The ports and addresses of whole processes: gRPC's and a direct one, of either family."""

from __future__ import annotations

import json
import socket

import pytest

from telegrad.transport.addresses import is_local
from tests.conftest import Programs, unused_port

PROGRAM = """
import ipaddress, os, sys
import numpy as np
from telegrad import rpc

def listening():
    held = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
            if os.path.lexists(f"/proc/self/fd/{fd}")}
    rows = [line.split() for name in ("tcp", "tcp6")
            for line in open(f"/proc/self/net/{name}").read().splitlines()[1:]]
    return [int(row[1].split(":")[1], 16) for row in rows
            if row[3] == "0A" and f"socket:[{row[9]}]" in held]

def total(array):
    return float(array.sum())

rank, options = int(sys.argv[2]), eval(sys.argv[3])
rpc.init_rpc(rank=rank, world_size=2, init_method=sys.argv[1],
             options=rpc.RpcOptions(token="a token that only the tests use", **options))
assert rpc.rpc_sync(1 - rank, total, (np.ones(10**6),)) == 10**6  # by lanes
print("ports", listening(), flush=True)
rpc.shutdown()
"""

needs_ipv6 = pytest.mark.skipif(
    not (socket.has_ipv6 and is_local("::1")), reason="this machine has no IPv6 loopback"
)


def ports_of(programs: Programs, host: str, first: str, second: str) -> tuple[int, list[list[int]]]:
    """Runs two workers; returns the coordinator's port, and on which ports each of them listens."""
    script, port = programs.script(PROGRAM), unused_port()
    ranks = [
        programs.start(["python", script, f"tcp://{host}:{port}", str(rank), options])
        for rank, options in enumerate((first, second))
    ]
    lines = [program.wait().splitlines()[-1] for program in ranks]
    return port, [json.loads(line.removeprefix("ports ")) for line in lines]


V4, V6 = "127.0.0.1", "[::1]"


@pytest.mark.parametrize(
    ("host", "first", "second", "counts"),
    [
        (V4, "{}", "{}", (2, 2)),
        (V4, "{'direct': False}", "{'direct': False}", (1, 1)),
        (V4, "{}", "{'port': None}", (2, 0)),
        pytest.param(V6, "{}", "{}", (2, 2), marks=needs_ipv6),
        pytest.param(V6, "{}", "{'bind': '::'}", (2, 2), marks=[needs_ipv6, pytest.mark.long]),
        pytest.param(V4, "{}", "{'bind': '::'}", (2, 2), marks=needs_ipv6),
    ],
)
@pytest.mark.few(2)
def test_each_process_listens_at_two_ports_at_most(
    programs: Programs, host: str, first: str, second: str, counts: tuple[int, int]
) -> None:
    """The direct one, and gRPC's: for the agent, its line to the coordinator, and for that itself."""
    port, (hosting, joining) = ports_of(programs, host, first, second)
    assert port in hosting
    assert port not in joining
    assert (len(hosting), len(joining)) == counts


@pytest.mark.long
@pytest.mark.parametrize("options", ["{'port': RANGE, 'direct': False}", "{'direct': RANGE}"])
def test_the_first_free_port_of_a_range(programs: Programs, options: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        first = taken.getsockname()[1]
        wanted = f"range({first}, {min(first + 50, 65536)})"
        _, (_, joining) = ports_of(programs, "127.0.0.1", "{}", options.replace("RANGE", wanted))
    assert [first < each < first + 50 for each in joining].count(True) == 1
