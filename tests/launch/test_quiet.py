"""Healthy programs under `telegrad run`: the terminal shows what the user printed, and no more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT = 40.0  # seconds; each takes about two

CALLS = """
import asyncio
import logging

import numpy as np

import telegrad as tg
from telegrad import dist_autograd, rpc
from telegrad.nn import Linear
from telegrad.parallel import DistributedOptimizer, RemoteModule


class Model:
    def __init__(self):
        self.weight = tg.tensor(np.ones(2), requires_grad=True)

    def scaled(self, x):
        return (self.weight * x).detach()


def parameter(model):
    return model.local_value().weight


def count(n):
    yield from range(n)


async def later(x):
    await asyncio.sleep(0)
    return x + 1


async def read():
    print(await rpc.rpc_async("worker1", later, (1,)))
    print([item async for item in rpc.stream("worker1", count, (3,))])


def train():
    tg.manual_seed(0)
    module = RemoteModule("worker1", Linear, (2, 1))
    optimizer = DistributedOptimizer(tg.optim.SGD, module.remote_parameters(), lr=0.1)
    before = module(tg.tensor(np.ones((1, 2))))
    for _ in range(3):
        with dist_autograd.context() as context_id:
            loss = (module(tg.tensor(np.ones((1, 2)))) ** 2).sum()
            dist_autograd.backward(context_id, [loss])
            optimizer.step(context_id)
    print(bool(loss.item() < (before.item() ** 2)))


if __name__ == "__main__":
    agent = rpc.init_rpc()
    if agent.rank == 0:
        asyncio.run(read())
        train()
        model = rpc.remote("worker1", Model)  # these references live until the interpreter ends
        print(model.rpc_sync().scaled(2.0))
        weight = rpc.remote("worker1", parameter, (model,))
        print(weight.to_here())
    else:
        rpc.publish("log", [])
    rpc.shutdown()
"""
COLLECTIVES = """
import numpy as np

from telegrad import collectives
from telegrad.nn import Linear
from telegrad.parallel import DistributedDataParallel

group = collectives.init_process_group()
model = DistributedDataParallel(Linear(2, 1))
model(np.ones((4, 2))).sum().backward()
total = np.ones(3)
collectives.all_reduce(total)
print(group.rank, total)
collectives.destroy_process_group()
"""
CASES = {
    "calls": (
        CALLS,
        ["[0] 2", "[0] [0, 1, 2]", "[0] True", "[0] tensor([2., 2.])", "[0] tensor([1., 1.])"],
    ),
    "collectives": (COLLECTIVES, ["[0] 0 [2. 2. 2.]", "[1] 1 [2. 2. 2.]"]),
}


LOCAL = """
from telegrad import launch, rpc


def double(x):
    return 2 * x


if __name__ == "__main__":
    rpc.init_rpc("me")
    workers = launch.LocalWorkers(1)
    kept = rpc.remote(workers.names[0], double, (4,))
    print(rpc.rpc_sync(workers.names[0], double, (3,)), kept.to_here())
"""


def check(directory: Path, script: str, command: list[str], expected: list[str]) -> None:
    """Runs a script; both streams have to hold the expected lines and nothing else."""
    (directory / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, *command, "script.py"],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert (sorted(done.stdout.splitlines()), done.stderr) == (sorted(expected), "")
    assert done.returncode == 0


@pytest.mark.parametrize("case", CASES)
@pytest.mark.few(1)
def test_a_healthy_run_prints_what_the_user_printed(tmp_path: Path, case: str) -> None:
    script, expected = CASES[case]
    check(tmp_path, script, ["-m", "telegrad", "run", "--nproc-per-node", "2"], expected)


@pytest.mark.long
def test_a_program_with_local_workers_prints_what_the_user_printed(tmp_path: Path) -> None:
    check(tmp_path, LOCAL, [], ["6 8"])
