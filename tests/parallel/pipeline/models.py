"""Models to split, small enough to be computed here as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import strategies as st

from telegrad import nn, optim
from telegrad.autograd import Tensor
from telegrad.parallel import Pipeline
from telegrad.parallel.pipeline import Pop, Stash
from telegrad.parallel.pipeline.mailbox import Mailboxes
from telegrad.rpc.seams import current_agent
from telegrad.testing.leaks import held_references
from telegrad.types import Array

__all__ = [
    "BLOCKS",
    "SCHEDULES",
    "WIDTH",
    "Case",
    "batch",
    "cases",
    "close",
    "layer",
    "left_behind",
    "losses",
    "make_model",
    "reference",
    "run_case",
]

SCHEDULES = ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"]

WIDTH = 6
BLOCKS = 10


class Block(nn.Module):
    """A linear layer with a nonlinearity."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=np.float64, rng=np.random.default_rng(seed))

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", np.tanh(self.linear(x)) + 0.5 * x)


def make_model(blocks: int = BLOCKS) -> nn.Sequential:
    return nn.Sequential(*(Block(i) for i in range(blocks)))


def batch(rows: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, WIDTH)), rng.integers(0, WIDTH, rows)


def reference(model: nn.Module, inputs: Array, labels: Array) -> tuple[float, dict[str, Array]]:
    """The loss and the gradients of the unsplit model on the whole batch."""
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    gradients: dict[str, Any] = {name: p.grad for name, p in trained}
    return loss.item(), {name: each.data for name, each in gradients.items()}


def close(found: dict[str, Array], expected: dict[str, Array]) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-10, atol=1e-13, err_msg=name)


def losses(pipe: Pipeline, optimizer: Any, steps: int, rows: int) -> list[float]:
    """The losses of some steps on one batch."""
    inputs, labels = batch(rows)
    found = []
    for _ in range(steps):
        found.append(pipe.step(inputs, labels))
        optimizer.step()
    return found


def left_behind() -> list[str]:
    """What a failed step would leave on this worker."""
    found = {
        "values": len(current_agent().attachments[Mailboxes]),
        "autograd contexts": held_references()["autograd contexts"],
    }
    return [f"{number} {kind}" for kind, number in found.items() if number]


# -- any pipeline ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A cut of BLOCKS blocks, with skip connections from behind one block to behind another.

    A block may be frozen, or have no parameters; one at least is trained.
    """

    schedule: str
    places: int
    counts: list[int]
    micro_batches: int
    rows: int
    skips: list[tuple[int, int]]
    recompute: str
    kinds: Sequence[str] = ("trained",) * BLOCKS


@st.composite
def cases(draw: st.DrawFn, schedule: str) -> Case:
    """Up to 5 places, up to 9 micro-batches, and rows that these need not divide."""
    places = draw(st.integers(1, 5))
    chunks = {"interleaved": draw(st.integers(2, 3)), "zb-v": 2}.get(schedule, 1)
    stages = min(places, BLOCKS // chunks) * chunks
    cuts = draw(st.sets(st.integers(1, BLOCKS - 1), min_size=stages - 1, max_size=stages - 1))
    micro_batches = draw(st.integers(1, 9))
    kind = st.sampled_from(["trained", "trained", "frozen", "tanh", "identity"])
    block = st.integers(0, BLOCKS - 1)
    skips = draw(st.lists(st.tuples(block, block), max_size=4))
    return Case(
        schedule,
        stages // chunks,
        [b - a for a, b in pairwise([0, *sorted(cuts), BLOCKS])],
        micro_batches,
        micro_batches + draw(st.integers(0, 11)),
        [(min(pair), max(pair)) for pair in skips],
        draw(st.sampled_from(["never", "always", "except_last"])),
        draw(st.lists(kind, min_size=BLOCKS, max_size=BLOCKS).filter(lambda x: "trained" in x)),
    )


def times(x: Any, y: Any) -> Any:
    return x * y


def layer(kind: str, seed: int) -> nn.Module:
    """A block that is trained or frozen, or a layer without parameters."""
    if kind in ("tanh", "identity"):
        return nn.Tanh() if kind == "tanh" else nn.Identity()
    made = Block(seed)
    for each in made.parameters():
        each.requires_grad = kind == "trained"
    return made


def with_skips(kinds: Sequence[str], skips: list[tuple[int, int]]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for k in range(BLOCKS):
        starts = [n for n, (a, _) in enumerate(skips) if a == k]
        ends = [n for n, (_, b) in enumerate(skips) if b == k]
        inside: list[nn.Module] = [layer(kinds[k], k), *(Stash(f"s{n}") for n in starts)]
        inside += [Pop(f"s{n}", times) if n % 2 else Pop(f"s{n}") for n in ends]
        layers.append(nn.Sequential(*inside))
    return nn.Sequential(*layers)


def run_case(case: Case) -> None:
    """Compares a pipeline with the unsplit model: two steps, of which the second is a replay."""
    model = with_skips(case.kinds, case.skips)
    pipe = Pipeline.from_sequential(
        model,
        [f"worker{r}" for r in range(case.places)],
        balance=case.counts,
        schedule=case.schedule,
        num_microbatches=case.micro_batches,
        loss=nn.functional.cross_entropy,
        recompute=case.recompute,
    )
    inputs, labels = batch(case.rows)
    loss, gradients = reference(model, inputs, labels)
    optimizer = pipe.optimizer(optim.SGD, lr=0.1)
    for _ in range(2):
        assert pipe.step(inputs, labels) == pytest.approx(loss, rel=1e-10)
        close(pipe.gradients(), gradients)
        optimizer.zero_grad()
    np.testing.assert_allclose(pipe.forward(inputs).data, model(inputs).data, rtol=1e-10)
