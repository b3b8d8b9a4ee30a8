"""Wrong arguments are refused at construction, each with its own words; balances are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad import nn, optim, rpc
from telegrad.errors import (
    BlockingCallError,
    InvalidUseError,
    PipelineError,
    ScheduleError,
    UnknownWorkerError,
)
from telegrad.parallel import Pipeline, RemoteModule
from telegrad.parallel.pipeline import Action, Kind, Pop, Schedule, Stash
from telegrad.parallel.pipeline.balance import best_cut
from telegrad.testing import Cluster
from tests.parallel.pipeline.models import WIDTH, Block, batch, close, losses, make_model, reference

LOSS = nn.functional.cross_entropy

SAMPLE = batch(3)[0]


def row(stage: int, text: str) -> tuple[Action, ...]:
    return tuple(Action(Kind(each[0]), stage, int(each[1])) for each in text.split())


SOUND = Schedule("own", (row(0, "F0 F1 B0 B1"), row(1, "F0 B0 F1 B1")))
DEADLOCK = Schedule("crossed", (row(0, "F0 B0 F1 B1"), row(1, "F1 F0 B0 B1")))


def split(**options: Any) -> Pipeline:
    given = {"workers": ["worker1", "worker2"], "num_microbatches": 2, "loss": LOSS, **options}
    return Pipeline.from_sequential(given.pop("model", make_model(4)), **given)


def stages(*given: Any, **options: Any) -> Pipeline:
    return Pipeline(given, **{"num_microbatches": 2, "loss": LOSS, **options})


def mixed() -> nn.Sequential:
    return nn.Sequential(Block(0), nn.ReLU(), Block(1))


WRONG: list[tuple[type[Exception], str, Callable[[], object]]] = [
    (ValueError, r"balance has 3 counts for 2 workers", lambda: split(balance=[1, 1, 2])),
    (ValueError, r"adds up to 5, the model has 4", lambda: split(balance=[1, 4])),
    (ValueError, r"each stage needs at least one", lambda: split(balance=[0, 4])),
    (ValueError, r"must be counts, 'parameters' or 'time'", lambda: split(balance="size")),
    (ValueError, r"cannot be cut into 2 stages", lambda: split(model=nn.Sequential(Block(0)))),
    (
        ValueError,
        r"1 modules cannot be cut into 2 stages",
        lambda: split(model=nn.Sequential(Block(0)), balance="time"),
    ),
    (TypeError, r"splits an nn.Sequential, not a Block", lambda: split(model=Block(0))),
    (ValueError, r"at least one worker", lambda: split(workers=[])),
    (ValueError, r"num_microbatches must be at least 1", lambda: split(num_microbatches=0)),
    (TypeError, r"num_microbatches must be an integer", lambda: split(num_microbatches=2.0)),
    (TypeError, r"num_microbatches must be an integer", lambda: split(num_microbatches=True)),
    (TypeError, r"a state is a dict of .*, not 3", lambda: split().load_state_dict(3)),  # type: ignore[arg-type]
    (TypeError, r"a state is a dict of .*, not 3", lambda: Block(0).load_state_dict(3)),  # type: ignore[arg-type]
    (ValueError, r"recompute must be one of", lambda: split(recompute="sometimes")),
    (TypeError, r"loss must be a function", lambda: split(loss="mse")),
    (TypeError, r"a spec is 'split', 'replicate' or", lambda: split(specs=["rows"])),
    (ScheduleError, r"unknown schedule '2f2b'", lambda: split(schedule="2f2b")),
    (ScheduleError, r"deadlock", lambda: split(schedule=DEADLOCK)),
    (
        ScheduleError,
        r"has 2 stages and 2 micro-batches, the pipeline 1 and 2",
        lambda: stages(("worker1", Block, (0,)), schedule=SOUND),
    ),
    (ScheduleError, r"2 places for 1 workers", lambda: split(workers=["worker1"], schedule=SOUND)),
    (
        ScheduleError,
        r"place 0 .* stages \[0, 2\], which must be on the same workers",
        lambda: stages(
            *[(f"worker{w}", Block, (0,)) for w in (1, 2, 2, 1)], schedule="interleaved"
        ),
    ),
    (ValueError, r"at least one stage", stages),
    (TypeError, r"no worker is named", lambda: stages(Block(0))),
    (TypeError, r"stage 0 must be \(worker, module\)", lambda: stages("worker1")),
    (TypeError, r"stage 0 must be \(worker, module\)", lambda: stages(("worker1", 3))),
    (TypeError, r"arguments of stage 0 must be a tuple", lambda: stages(("worker1", Block, 3))),
    (
        TypeError,
        r"pass it alone",
        lambda: stages(("worker1", RemoteModule("worker1", Block, (0,)))),
    ),
    (TypeError, r"stage 0 must be a Module, not a int", lambda: stages(("worker1", int))),
    (TypeError, r"balance must be counts, .*, not 3", lambda: split(balance=3)),
    (TypeError, r"balance must be counts, .*, not \[1.5, 2\]", lambda: split(balance=[1.5, 2])),
    (TypeError, r"workers must be a list of workers, not 'w", lambda: split(workers="worker1")),
    (ValueError, r"there is no stage 7 \(stages: 2\)", lambda: split().replace(7, "worker1")),
    (UnknownWorkerError, r"worker9", lambda: stages(("worker9", Block(0)))),
    (
        PipelineError,
        r"stage 1 on worker 'worker2' failed in the forward of micro-batch 0: .*; stage 0 on "
        r"worker 'worker1' gave it float64 of shape \(3, 6\)",
        lambda: stages(("worker1", Block, (0,)), ("worker2", nn.Linear, (5, 2)), sample=SAMPLE),
    ),
    (
        PipelineError,
        r"stage 1 .*micro-batch 0: .*integer.*; stage 0 .* gave it float64 of shape \(3, 6\)",
        lambda: stages(("worker1", Block, (0,)), ("worker2", nn.Embedding, (9, 2)), sample=SAMPLE),
    ),
    (
        PipelineError,
        r"stage 0 .*; the caller gave it float64 of shape \(3, 6\)",
        lambda: split(model=nn.Sequential(nn.Linear(5, 6), Block(0)), sample=SAMPLE),
    ),
    (
        PipelineError,
        r"stage 0 on worker 'worker1' gives 2 outputs, which the forward of stage 1",
        lambda: stages(("worker1", Pair), ("worker2", Block, (0,)), sample=SAMPLE),
    ),
]


def refuse_all() -> None:
    for kind, words, make in WRONG:
        with pytest.raises(kind, match=words):
            make()
    with pytest.raises(TypeError, match="unexpected keyword|argument") as caught:
        stages(("worker1", Block, (0,)), ("worker2", Block, (0, 1, 2)))
    assert "in the making of stage 1 of a pipeline" in caught.value.__notes__


def test_each_wrong_argument_has_words_of_its_own(cluster: Cluster) -> None:
    cluster.call(0, refuse_all)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block(0)

    def forward(self, x: Any) -> Any:
        return self.block(x), x


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block(0)

    def forward(self, x: Any) -> Any:
        self.block(x)
        return "words"


def constant(output: Any, target: Any) -> float:
    return 1.0


def refuse_steps() -> None:
    pipe = split(num_microbatches=4)
    with pytest.raises(ValueError, match=r"num_microbatches=4 is more than the 3 rows"):
        pipe.step(*batch(3))
    with pytest.raises(ValueError, match=r"argument 1 has shape \(5,\)"):
        pipe.step(batch(6)[0], batch(5)[1])
    with pytest.raises(TypeError, match="needs the inputs"):
        pipe.step()
    with pytest.raises(TypeError, match="2 arguments were given, and specs has 1"):
        split(specs=["split"]).step(*batch(4))
    with pytest.raises(ValueError, match="returned 1 parts for 2 micro-batches"):
        split(specs=[lambda x, n: [x], "split"]).step(*batch(4))
    assert pipe.forward(batch(3)[0]).shape == (3, WIDTH)
    inputs, labels = batch(4)
    for run in (pipe.forward, lambda x: pipe.step(x, labels), lambda x: pipe.step(inputs, x)):
        for wrong in (5.0, None, "words", object(), [1, [2, 3]]):
            with pytest.raises((TypeError, ValueError), match=r"^argument \d (has|cannot)"):
                run(wrong)
    with pytest.raises(PipelineError, match=r"stage 0 .* must return a Tensor or a tuple of Ten"):
        stages(("worker1", Words), ("worker2", Block, (0,))).step(*batch(4))
    with pytest.raises(PipelineError, match=r"the loss must be a Tensor of one item"):
        stages(("worker1", Block, (0,)), loss=constant).step(*batch(4))
    with pytest.raises(
        PipelineError, match=r"the output of the last stage must be a Tensor of one"
    ):
        stages(("worker1", Block, (0,)), loss=None).step(batch(4)[0])


def test_steps_that_do_not_fit_the_model(cluster: Cluster) -> None:
    cluster.call(0, refuse_steps)


async def on_the_loop() -> str:
    try:
        stages(("worker1", Block, (0,)))
    except BlockingCallError as error:
        return str(error)
    return ""


def test_a_pipeline_does_not_block_a_loop(cluster: Cluster) -> None:
    assert "to_thread" in cluster.call(0, rpc.rpc_sync, "worker1", on_the_loop)


# -- balance -------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.data())
def test_the_best_cut_is_the_best(weights: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(weights)))

    def cuts(n: int, k: int) -> Iterator[list[int]]:
        if k == 1:
            yield [n]
            return
        for first in range(1, n - k + 2):
            yield from ([first, *rest] for rest in cuts(n - first, k - 1))

    def heaviest(counts: list[int]) -> float:
        sums, first = [], 0
        for count in counts:
            sums.append(sum(weights[first : first + count]))
            first += count
        return max(sums)

    found = best_cut(weights, stages)
    assert sum(found) == len(weights)
    assert heaviest(found) == min(map(heaviest, cuts(len(weights), stages)))


class Slow(nn.Module):
    """A block that counts as many as its size."""

    def __init__(self, seed: int, loops: int) -> None:
        super().__init__()
        self.block, self.loops = Block(seed), loops

    def forward(self, x: Any) -> Any:
        for _ in range(self.loops):
            np.linalg.svd(np.ones((60, 60)))
        return self.block(x)


def measured() -> None:
    model = nn.Sequential(Slow(0, 12), *(Slow(k, 0) for k in range(1, 6)))
    for sample in (batch(2)[0], None):
        pipe = split(model=model, balance="time", sample=sample)
        optimizer = pipe.optimizer(optim.SGD, lr=0.1)
        if sample is None:
            with pytest.raises(InvalidUseError, match="not split yet"):
                pipe.parameter_rrefs()
            close(pipe.state_dict(), model.state_dict())
            pipe.load_state_dict(pipe.state_dict())
            assert "no worker yet" in repr(pipe.train())
            with pytest.raises(TypeError):
                pipe.optimizer(optim.SGD, rate=1.0)
        loss, gradients = reference(model, *batch(4))
        assert pipe.step(*batch(4)) == pytest.approx(loss, rel=1e-10)
        close(pipe.gradients(), gradients)
        assert optimizer.step().stepped
        owners = [rref.owner_name() for rref in pipe.parameter_rrefs()]
        assert owners == ["worker1"] * 2 + ["worker2"] * 10


def test_a_balance_by_time_measures_a_sample_or_the_first_inputs(cluster: Cluster) -> None:
    cluster.call(0, measured)


def unmeasurable() -> None:
    model = nn.Sequential(Block(0), nn.Linear(5, 2))
    with pytest.raises(ValueError, match="needs an input of shape") as caught:
        split(model=model, balance="time", sample=SAMPLE)
    (note,) = caught.value.__notes__
    assert note == "module '1' was measured on the sample, and got float64 of shape (3, 6)"


def test_a_sample_that_a_module_does_not_take_cannot_be_measured(cluster: Cluster) -> None:
    cluster.call(0, unmeasurable)


def stateful() -> nn.Sequential:
    """A model with random numbers, running means, skip connections, and a part in evaluation."""
    rng = np.random.default_rng
    return nn.Sequential(
        Block(0),
        Stash("early"),
        nn.Dropout(rng=rng(1)),
        Block(1),
        nn.BatchNorm1d(WIDTH, dtype=np.float64),
        Pop("early"),
        nn.Dropout(rng=rng(2)).eval(),
        Block(2),
    )


def sampled(balance: Any) -> None:
    models = [stateful(), stateful()]
    own = models[0].state_dict()
    pipes = [
        split(model=models[0], balance=balance, sample=SAMPLE),
        split(model=models[1], balance=[3, 5]),
    ]
    close(models[0].state_dict(), own)
    assert all(p.grad is None for p in models[0].parameters())
    optimizers = [pipe.optimizer(optim.SGD, lr=0.1) for pipe in pipes]
    found, expected = (losses(*each, 3, 6) for each in zip(pipes, optimizers, strict=True))
    assert found == pytest.approx(expected, rel=1e-10)
    close(pipes[0].state_dict(), pipes[1].state_dict())


@pytest.mark.parametrize("balance", ["time", [4, 4]], ids=["time", "counts"])
def test_a_sample_leaves_no_trace(cluster: Cluster, balance: Any) -> None:
    cluster.call(0, sampled, balance)


def measure_dropout() -> bool:
    nn.manual_seed(3)
    expected = nn.current_generator().bit_generator.state
    split(model=nn.Sequential(Block(0), nn.Dropout(), Block(1)), balance="time", sample=SAMPLE)
    return nn.current_generator().bit_generator.state == expected


def test_measuring_draws_nothing_from_the_seeded_generator(cluster: Cluster) -> None:
    assert cluster.call(0, measure_dropout)


def own_table() -> None:
    model = make_model(4)
    pipe = split(model=model, schedule=SOUND, num_microbatches=np.int64(2))
    loss, gradients = reference(model, *batch(5))
    assert pipe.step(*batch(5)) == pytest.approx(loss, rel=1e-10)
    close(pipe.gradients(), gradients)
    assert pipe.report().held == (2, 1)


def test_a_table_of_ones_own_runs(cluster: Cluster) -> None:
    cluster.call(0, own_table)


def parametrised() -> None:
    pipe = split(model=nn.Sequential(*mixed().children(), nn.ReLU()))
    owners = [rref.owner_name() for rref in pipe.parameter_rrefs()]
    assert owners == ["worker1"] * 2 + ["worker2"] * 2


def test_each_stage_of_a_balance_has_parameters(cluster: Cluster) -> None:
    cluster.call(0, parametrised)
