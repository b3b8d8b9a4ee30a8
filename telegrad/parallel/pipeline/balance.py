"""The cut of a Sequential into stages of about the same weight."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from telegrad.autograd import Tensor, current_generator
from telegrad.autograd.seams import repeatable
from telegrad.nn import Module, Sequential
from telegrad.parallel.pipeline.micro_batches import described, whole_arguments
from telegrad.parallel.pipeline.skips import SkipsHere, through
from telegrad.parallel.pipeline.sources import MovedModule
from telegrad.types import Array

REPEATS = 3  # the least time of so many runs counts: other work of the machine only adds to it


def split(
    model: Sequential, stages: int, balance: str | Sequence[int], sample: Any = None
) -> list[Module]:
    """Returns the stages of a model: Sequentials whose modules keep their names.

    Args:
        model: The model.
        stages: The number of stages.
        balance: The number of modules of each stage, `parameters` or `time`.
        sample: One micro-batch of inputs, or a tuple of several inputs, for `time`.

    Raises:
        ValueError: The balance does not fit.
    """
    named = list(model.named_children())
    if isinstance(balance, str):
        counts = best_cut(_weights(model, balance, sample), stages)
    else:
        counts = list(balance)
        if len(counts) != stages:
            raise ValueError(
                f"balance has {len(counts)} counts for {stages} stages: {counts}; with "
                "'interleaved' and 'zb-v' each worker has two stages or more"
            )
        if sum(counts) != len(named) or min(counts) < 1:
            raise ValueError(
                f"balance {counts} adds up to {sum(counts)}, the model has {len(named)} modules; "
                "each stage needs at least one"
            )
    parts: list[Module] = []
    first = 0
    for count in counts:
        parts.append(Sequential(dict(named[first : first + count])))
        first += count
    return parts


def best_cut(weights: Sequence[float], stages: int) -> list[int]:
    """Returns the counts of consecutive items whose heaviest stage is as light as possible.

    Args:
        weights: The weight of each item.
        stages: The number of stages.

    Raises:
        ValueError: There are fewer items than stages.

    >>> best_cut([1, 1, 1, 5, 2, 2], 3)
    [3, 1, 2]
    >>> best_cut([4, 0, 4], 2)
    [1, 2]
    """
    n = len(weights)
    if n < stages:
        raise ValueError(
            f"a model with {n} modules cannot be cut into {stages} stages; each stage needs one"
        )
    before = [0.0, *accumulate(weights)]
    # For each number of stages k and items i the best cut of the first i items: its heaviest stage,
    # the sum of squares, which decides between cuts with the same one, and the start of its last
    # stage.
    best: dict[tuple[int, int], tuple[float, float, int]] = {(0, 0): (0.0, 0.0, 0)}
    for k in range(1, stages + 1):
        for i in range(k, n - stages + k + 1):
            cuts = [
                (max(heaviest, size), squares + size * size, j)
                for j in range(k - 1, i)
                if (k - 1, j) in best
                for heaviest, squares, _ in [best[k - 1, j]]
                for size in [before[i] - before[j]]
            ]
            if cuts:
                best[k, i] = min(cuts)
    counts: list[int] = []
    i = n
    for k in range(stages, 0, -1):
        j = best[k, i][2]
        counts.insert(0, i - j)
        i = j
    return counts


def _weights(model: Sequential, balance: str, sample: Any) -> list[float]:
    if balance == "parameters":
        children = model.children()
        return [float(sum(each.data.size for each in part.parameters())) for part in children]
    if balance == "time":
        if sample is None:
            raise ValueError("balance='time' measures the modules on a micro-batch: pass sample=")
        return _times(model, sample)
    raise ValueError(f"balance must be counts, 'parameters' or 'time', not {balance!r}")


class _SkipsApart(SkipsHere):
    """The values of one measured forward; each module has a graph of its own."""

    def stash(self, name: str, value: Tensor) -> None:
        """Puts the numbers of a value aside, as a leaf."""
        super().stash(name, _leaf(value.data))


def _times(model: Sequential, sample: Any) -> list[float]:
    """Returns the seconds of each module's forward and backward for a sample.

    A copy is measured: random generators, buffers and gradients of the model stay as they are. So
    does the generator of `manual_seed`.
    """
    parts = dict(MovedModule.of(model).build().named_children())
    least = dict.fromkeys(parts, float("inf"))
    for _ in range(REPEATS):
        values = [each.values for each in whole_arguments(sample)]
        state = current_generator().bit_generator.state
        with through(_SkipsApart()), repeatable(state):
            for name, part in parts.items():
                seconds, values = _time(name, part, values)
                least[name] = min(least[name], seconds)
    return list(least.values())


def _time(name: str, part: Module, values: list[Array]) -> tuple[float, list[Array]]:
    """Returns the seconds of one module for its inputs, and its outputs."""
    leaves = [_leaf(x) for x in values]
    began = time.perf_counter()
    try:
        outputs = part(*leaves)
    except Exception as error:  # of the user's module
        error.add_note(f"module {name!r} was measured on the sample, and got {described(values)}")
        raise
    found = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    for x in found:
        if x.requires_grad:
            x.sum().backward(retain_graph=True)
    return time.perf_counter() - began, [x.data for x in found]


def _leaf(array: Array) -> Tensor:
    return Tensor(array, requires_grad=array.dtype.kind in "fc")
