"""Runs the examples as their readers would, and holds README to what they say."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import numpy as np
import pytest

import telegrad as tg
from examples import batch_rpc, pipeline_by_hand
from telegrad import dist_autograd, nn, rpc
from telegrad.nn import functional
from telegrad.testing import Cluster
from telegrad.types import Array
from tests.conftest import Programs

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
LAUNCH = ["telegrad", "run", "--nproc-per-node"]
DIGITS = ["sklearn.datasets"]  # which takes a second to import


def test_the_program_in_the_readme_is_the_example() -> None:
    program = (ROOT / "examples" / "first_gradient.py").read_text()
    assert len(program.splitlines()) <= 30
    assert f"```python\n{program}```" in README.read_text()


def test_the_first_gradient_prints_what_the_readme_shows(programs: Programs) -> None:
    output = programs.run([*LAUNCH, "2", "examples/first_gradient.py"])
    shown = re.search(
        r"    \$ telegrad run .*first_gradient\.py\n((?:    .*\n)+)", README.read_text()
    )
    assert shown is not None
    expected = [line.strip() for line in shown[1].splitlines()]
    assert [line for line in output.splitlines() if line.startswith("[0]")] == expected


# What stands before the main part of an example that trains for fewer epochs.
SHORT = """
from tests import digits
digits.put_in_place()
from examples import {name} as example
from telegrad import rpc

example.EPOCHS = {epochs}

if __name__ == "__main__":
    with rpc.init_rpc() as agent:
        if agent.rank == 0:
            example.{main}
"""


def learn(
    programs: Programs, name: str, processes: str, epochs: int | None, main: str, *options: str
) -> tuple[float, str]:
    """Returns the accuracy of an example on the digits, and its output."""
    program: Path | str = f"examples/{name}.py"
    preload = DIGITS
    if epochs is not None:
        preload = []
        program = programs.script(SHORT.format(name=name, epochs=epochs, main=main))
    output = programs.run([*LAUNCH, processes, program, *options], limit=80.0, preload=preload)
    accuracy = re.search(r"test accuracy: (\d+\.\d) %", output)
    assert accuracy is not None, output
    assert "warning" not in output.lower()
    return float(accuracy[1]), output


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("epochs", "least"),
    # Gradients are as old as the machine makes them: 93 to 99 after all epochs.
    [(2, 50.0), pytest.param(None, 85.0, marks=pytest.mark.long)],
)
def test_two_parameter_servers_learn_digits(
    programs: Programs, epochs: int | None, least: float
) -> None:
    main = "serve(example.parse(agent.world_size))"
    options = ["--servers", "2", "--mode", "bounded"]
    accuracy, output = learn(programs, "parameter_server", "4", epochs, main, *options)
    assert accuracy >= least
    assert re.search(r"begun more than the slowest: [1-4], at most", output), output
    assert re.search(r"calls: [\d,]+ +bytes: [\d.]+ MB +time: [\d.]+ s", output)


# -- batch_rpc -----------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(90)
def test_batched_updates_learn_digits_with_a_third_of_the_updates(programs: Programs) -> None:
    output = programs.run([*LAUNCH, "4", "examples/batch_rpc.py"], limit=80.0, preload=DIGITS)
    found = re.findall(
        r"(one by one|batched): +(\d+) updates +([\d,]+) images +[\d,]+ images/s +"
        r"test accuracy: (\d+\.\d) %",
        output,
    )
    assert [form[:3] for form in found] == [
        ("one by one", "270", "8,622"),
        ("batched", "90", "8,622"),
    ], output
    assert all(float(accuracy) >= 90.0 for *_, accuracy in found), output
    assert re.search(r"batched is \d+\.\d\d times as fast", output)
    assert "warning" not in output.lower()


def random_gradients(seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=p.shape).astype(p.dtype) for p in batch_rpc.make_model().parameters()]


def test_an_update_that_fails_is_the_error_of_every_push_of_its_round() -> None:
    server = batch_rpc.Batched(batch_rpc.SharedModel(), "ab")
    wrong = [gradient[:1] for gradient in random_gradients(0)]
    answers = [server.push(name, wrong) for name in "ab"]
    for answer in answers:
        with pytest.raises(ValueError, match="a gradient of shape"):
            answer.value()


SHORT_AND_DEADLY = """
import os, signal
from tests import digits
digits.put_in_place()
from examples import batch_rpc
from telegrad import rpc

batch_rpc.EPOCHS, batch_rpc.HIDDEN = 2, 32
gradients_of = batch_rpc.gradients_of
calls = 0

def dying(*args):
    global calls
    calls += 1
    if calls == 35:  # of 30 one by one, and 30 in rounds
        os.kill(os.getpid(), signal.SIGKILL)
    return gradients_of(*args)

if __name__ == "__main__":
    with rpc.init_rpc() as agent:
        if agent.rank == 2:
            batch_rpc.gradients_of = dying
        if agent.rank == 0:
            batch_rpc.serve()
"""


@pytest.mark.long
def test_rounds_go_on_without_a_trainer_that_is_killed(programs: Programs) -> None:
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    server, *trainers = programs.ranks(programs.script(SHORT_AND_DEADLY), 4, env=one_thread)
    output = server.wait()
    assert re.search(r"one by one: +90 updates", output), output
    assert re.search(r"batched: +30 updates +1,916 images", output), output
    assert "lost: worker2; the rest of its images was left out" in output
    for trainer, code in zip(trainers, (0, -signal.SIGKILL, 0), strict=True):
        trainer.wait(code=code)


# -- pipeline ------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("epochs", "least"), [(4, 60.0), pytest.param(None, 94.0, marks=pytest.mark.long)]
)
def test_the_pipeline_learns_digits(programs: Programs, epochs: int | None, least: float) -> None:
    accuracy, output = learn(programs, "pipeline", "3", epochs, "train()")
    assert accuracy >= least
    assert "that a stage held: (3, 2, 1)" in output


@pytest.mark.timeout(90)
@pytest.mark.long  # that it computes the right gradients is tested below
def test_the_pipeline_by_hand_learns_digits_with_micro_batches_in_flight(
    programs: Programs,
) -> None:
    accuracy, output = learn(programs, "pipeline_by_hand", "3", None, "train()")
    assert accuracy >= 94.0
    in_flight = re.search(r"in flight at one time: (\d) from stage 0 on, (\d) from", output)
    assert in_flight is not None, output
    assert int(in_flight[1]) >= 2


def some_digits() -> tuple[pipeline_by_hand.Floats, pipeline_by_hand.Labels]:
    images, labels = pipeline_by_hand.load_data()[0]
    return images[:50], labels[:50]


def gradients_of_stage(stage: rpc.RRef[pipeline_by_hand.Stage], context_id: int) -> list[Array]:
    found = dist_autograd.get_gradients(context_id)
    return [found[parameter].data for parameter in stage.local_value().parameters()]


def pipeline_gradients() -> list[Array]:
    model = pipeline_by_hand.Pipeline(rpc.get_worker_infos())
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, model.losses(*some_digits()))
        by_stage = [
            rpc.rpc_sync(stage.owner(), gradients_of_stage, (stage, context_id))
            for stage in model.stages
        ]
    return [gradient for gradients in by_stage for gradient in gradients]


def test_gradients_of_the_pipeline_are_those_of_the_whole_model() -> None:
    with Cluster(3) as cluster:
        found = cluster.call(0, pipeline_gradients)
    whole = nn.Sequential(*(pipeline_by_hand.Stage(j, 3).layers for j in range(3)))
    images, labels = some_digits()
    functional.cross_entropy(whole(tg.as_tensor(images)), labels).backward()
    expected = [p.grad.data for p in whole.parameters() if p.grad is not None]
    assert len(found) == len(expected) == 6
    for actual, gradient in zip(found, expected, strict=True):
        np.testing.assert_allclose(actual, gradient, rtol=1e-4, atol=1e-6)
