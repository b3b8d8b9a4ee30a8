"""Pipelines over two hosts: the tutorial's model of characters, and transfers beside compute."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

import numpy as np
import pytest

from telegrad import nn, rpc
from telegrad.autograd import Function
from telegrad.parallel import Pipeline
from telegrad.parallel.pipeline.mailbox import Mailboxes
from telegrad.rpc.seams import current_agent
from telegrad.testing.leaks import wait_until_gone
from tests.conftest import Programs
from tests.faults.hostile.hostile_job import HostileJob
from tests.hosts.conftest import Launch, MakeHosts

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorials" / "character-pipeline.md"
SHORT = """
import sys
from examples import character_pipeline as example

example.STEPS, example.LINE_EVERY, example.SAMPLE = 8, 2, 10
example.BATCH, example.MICRO_BATCHES, example.LENGTH, example.WIDTH = 16, 4, 16, 32
sys.argv += ["--picture", {picture!r}]

if __name__ == "__main__":
    example.main()
"""


def masked(line: str) -> str:
    """Returns a line of output without numbers and the name of the picture."""
    return re.sub(r"[\d,.]*\d", "N", re.sub(r"\S+\.svg$", "PICTURE", " ".join(line.split())))


@pytest.mark.long  # tests/programs/test_character_pipeline.py learns on one host
@pytest.mark.timeout(90)
def test_four_stages_on_two_hosts_learn_and_print_what_the_tutorial_shows(
    make_hosts: MakeHosts, launch: Launch, tmp_path: Path
) -> None:
    picture = tmp_path / "step.svg"
    first, second = launch(make_hosts(2), SHORT.format(picture=str(picture)), 2, 2)
    output = first.wait()
    second.wait()
    losses = [float(loss) for loss in re.findall(r"step +\d+/8 +loss (\d\.\d+)", output)]
    assert len(losses) == 5, output
    assert losses[-1] < losses[0] - 1.0
    assert "that a stage held: (4, 3, 2, 1)" in output
    lines = [line for line in output.partition("[0] it writes:")[0].splitlines() if "[0]" in line]
    shown = {masked(line) for line in TUTORIAL.read_text().splitlines()}
    assert {masked(line) for line in lines} <= shown
    rows = [text.text for text in ElementTree.parse(picture).iter() if text.tag.endswith("text")]
    assert [rows.count(f"place {place}") for place in range(5)] == [2, 2, 2, 2, 0]
    assert "warning" not in output.lower()


# -- transfers beside compute ----------------------------------------------------------------------

M, SIDE = 4, 1000  # micro-batches of 4 MB, which take 32 ms at 1 Gbit/s
STEP = 30.0  # seconds for a step that shall fail because it waits for ever


class Beside(Function):
    """The compute of a stage, which ends only if transfers go on beside it.

    stage 0    F0  F1 ╌╌╌╌╌╌ until stage 1 is in F0; F2  F3
    stage 1            F0 ╌╌ until the values of F1, F2 and F3 are here

    The first stage that runs F waits in F1: what it has handed over must arrive meanwhile. The
    other one waits in F0, and the values of all others must arrive meanwhile. The backwards do the
    same the other way round.
    """

    calls: ClassVar[dict[tuple[str, str], int]] = {}

    @staticmethod
    def compute(phase: str, folder: str, *, first: bool) -> None:
        number = Beside.calls.get((folder, phase), 0)
        Beside.calls[folder, phase] = (number + 1) % M
        if number == (1 if first else 0):
            # Opening one returns when the other end opens it as well.
            with open(f"{folder}/{phase}", "rb" if first else "wb"):
                pass
            if not first:
                wait_until_gone("values under way", lambda: range(waiting_values(), M - 1), STEP)

    @staticmethod
    def forward(ctx: Any, x: Any, stage: int, folder: str) -> Any:
        ctx.stage, ctx.folder = stage, folder
        Beside.compute("F", folder, first=stage == 0)
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        Beside.compute("B", ctx.folder, first=ctx.stage == 1)
        return g, None, None


def waiting_values() -> int:
    return len(current_agent().attachments[Mailboxes])


class Computing(nn.Module):
    def __init__(self, stage: int, folder: str) -> None:
        super().__init__()
        self.stage, self.folder = stage, folder
        self.factor = nn.Parameter(np.ones((), np.float32))

    def forward(self, x: Any) -> Any:
        y = Beside.apply(x * self.factor, self.stage, self.folder)
        return y.mean() if self.stage else y


def steps(folder: str) -> list[float]:
    """Runs two steps on worker0, of which the second is a replay; worker1 only knows the stage."""
    if rpc.get_worker_info().rank:
        return []
    stages: list[Any] = [(f"worker{stage}", Computing, (stage, folder)) for stage in range(2)]
    pipe = Pipeline(stages, schedule="gpipe", num_microbatches=M, timeout=STEP)
    inputs = np.ones((M * SIDE, SIDE), np.float32)
    return [pipe.step(inputs) for _ in range(2)]


@pytest.mark.long
def test_what_a_stage_hands_over_arrives_while_both_stages_compute(
    make_hosts: MakeHosts, programs: Programs, tmp_path: Path
) -> None:
    hosts = make_hosts(2)
    hosts.limit(1, "1gbit", burst="128kb", queue="1mb")
    for phase in "FB":
        os.mkfifo(tmp_path / phase)
    names = ("worker0", "worker1")
    with HostileJob(programs, names, lost_after=STEP, bridge=hosts, options={}) as job:
        assert job.run(steps, str(tmp_path))["worker0"] == [1.0, 1.0]
