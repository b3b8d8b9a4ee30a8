"""Collectives over two hosts with two ranks each: memory inside a host, messages between them."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Programs
from tests.hosts.conftest import PORT, TOKEN, Launch, MakeHosts

pytestmark = pytest.mark.long

SCRIPT = """
import json
import numpy as np
from telegrad import collectives as dist

SIZE = 2**20  # items of four bytes
world = dist.init_process_group(timeout=60.0)
dist.barrier()
before = world.statistics().bytes_sent
for op in dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX:
    array = np.arange(SIZE, dtype=np.float32) + world.rank
    dist.all_reduce(array, op)
    each = [np.arange(SIZE, dtype=np.float32) + r for r in range(4)]
    wanted = {"SUM": sum(each), "AVG": sum(each) / 4, "MAX": each[3]}[op.name]
    np.testing.assert_allclose(array, wanted, rtol=1e-6)
sent = world.statistics().bytes_sent - before
small = np.ones(3)
dist.all_reduce(small)
assert small.tolist() == [4.0] * 3
dist.broadcast(small, 3)
dist.destroy_process_group()
print(json.dumps({"rank": world.rank, "sent": sent}))
"""


def test_the_first_rank_of_each_host_sends(make_hosts: MakeHosts, programs: Programs) -> None:
    hosts, script = make_hosts(2), programs.script(SCRIPT)
    words = ["python", "-m", "telegrad", "run", "--nproc-per-node", "2", "--nnodes", "2"]
    words += ["--master-addr", hosts.address(0), "--master-port", str(PORT)]
    env = {"TELEGRAD_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
    started = [
        programs.start(
            [*hosts.on(node), *words, "--node-rank", str(node), str(script)], env=env, limit=90.0
        )
        for node in range(2)
    ]
    lines = [line for each in started for line in each.wait().splitlines() if '"sent"' in line]
    sent = {found["rank"]: found["sent"] for found in (json.loads(line[4:]) for line in lines)}
    assert sorted(sent) == [0, 1, 2, 3]
    assert sent[1] == sent[3] <= 3  # a byte or so, which tells that the memory is good
    assert 3 * 2**22 <= sent[0] < 1.1 * 3 * 2**22


DIFFERING = """
from telegrad import collectives as dist
from tests.collectives.promises import test_differing_calls as calls

dist.init_process_group()
long = [(verb, first, 40_000) for verb in ("all_reduce", "broadcast") for first in range(calls.N)]
for verb, first, depth in [*long, *((verb, 0, 1) for verb in calls.COMPARED)]:
    odds = calls.odds_of(verb, first)
    told = calls.differ(verb, odds, (None, True, depth))
    calls.check(verb, odds, dist.all_gather_object(told))
dist.destroy_process_group()
print("checked")
"""


def test_one_rank_that_differs(make_hosts: MakeHosts, launch: Launch) -> None:
    """Ranks 0 and 1 are on one host, rank 2 is on another one."""
    for program in launch(make_hosts(2), DIFFERING, 2, 1):
        assert "checked" in program.wait()
