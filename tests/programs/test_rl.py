"""Has the agent of the example learn: without a network, on workers, and when one is lost."""

from __future__ import annotations

import asyncio
import re
import signal
import struct
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from examples import rl
from telegrad import rpc
from telegrad.testing import Cluster
from tests.conftest import Programs

LAUNCH = ["telegrad", "run", "--nproc-per-node"]


class Here:
    """Stands for a reference to an agent, whose methods are called without a network."""

    def __init__(self, agent: rl.Agent) -> None:
        self.agent = agent

    def rpc_async(self) -> rl.Agent:
        return self.agent


async def train_here(observers: int) -> rl.Episodes:
    agent, episodes = rl.Agent(range(observers)), rl.Episodes()
    here = cast("rpc.RRef[rl.Agent]", Here(agent))
    carts = [rl.Observer(here, number) for number in range(observers)]
    while not episodes.solved() and episodes.steps_now < 30_000:
        played = dict(enumerate(await asyncio.gather(*(cart.play(rl.STEPS) for cart in carts))))
        episodes.add(played)
        agent.learn(played)
    return episodes


@pytest.mark.long
@pytest.mark.parametrize("goal", [80.0, pytest.param(195.0, marks=pytest.mark.long)])
def test_the_agent_learns_to_balance_the_pole(goal: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rl, "GOAL", goal)
    episodes = asyncio.run(train_here(8))
    assert episodes.solved()
    assert episodes.mean() >= goal
    assert np.mean(episodes.rewards[:20]) < 50.0
    assert max(episodes.rewards) >= min(2.0 * goal, 500.0)


def rewards_on_workers() -> list[float]:
    return rl.train().rewards


@pytest.mark.long
def test_rewards_on_workers_are_those_without_a_network(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rl, "GOAL", 35.0)
    monkeypatch.setattr(rl, "EPISODES", 30)
    with Cluster(3) as cluster:
        found = cluster.call(0, rewards_on_workers)
    assert found == asyncio.run(train_here(8)).rewards
    assert len(found) > 30
    assert "mean reward of the last 30" in capsys.readouterr().out


# -- as its readers run it -----------------------------------------------------------------------

SHORT_AND_DEADLY = """
import os, signal
from examples import rl
from telegrad import rpc

rl.GOAL, rl.EPISODES = 35.0, 30
play = rl.Observer.play
calls = 0

async def dying(self, steps):
    global calls
    calls += 1
    if calls > rl.OBSERVERS:
        await play(self, 10)
        os.kill(os.getpid(), signal.SIGKILL)
    return await play(self, steps)

if __name__ == "__main__":
    if os.environ["RANK"] == "2":
        rl.Observer.play = dying
    rl.main()
"""


def size_of_png(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    size: Any = struct.unpack(">II", head[16:])
    return size[0], size[1]


@pytest.mark.long
def test_the_agent_goes_on_without_a_worker_that_is_killed(
    programs: Programs, tmp_path: Path
) -> None:
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    curve = tmp_path / "curve.png"
    agent, *workers = programs.ranks(
        programs.script(SHORT_AND_DEADLY), 3, env=one_thread, arguments=["--curve", str(curve)]
    )
    output = agent.wait()
    assert "lost: worker2 with its observers; the others go on" in output
    assert re.search(r"\nsolved: [\d,]+ steps +\d+ episodes ", output), output
    for worker, code in zip(workers, (0, -signal.SIGKILL), strict=True):
        worker.wait(code=code)
    assert size_of_png(curve) == (960, 540)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_example_comes_to_a_mean_reward_of_195(programs: Programs, tmp_path: Path) -> None:
    curve = tmp_path / "curve.png"
    output = programs.run([*LAUNCH, "3", "examples/rl.py", "--curve", curve], limit=280.0)
    found = re.search(r"solved: +([\d,]+) steps .* mean reward of the last 100: +(\d+\.\d)", output)
    assert found is not None, output
    assert float(found[2]) >= 195.0
    assert "warning" not in output.lower()
    assert size_of_png(curve) == (960, 540)
