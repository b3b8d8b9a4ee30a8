"""Random programs of 3 to 12 functions: results, gradients and gradients of gradients as torch's.

Every other program calls NumPy's functions by NumPy's names, the others those of telegrad.numpy.

scripts/make_golden.py draws them and says what torch finds; tests/golden/store.py, how to read it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import telegrad as tg
import telegrad.numpy as np
from telegrad.autograd import Tensor
from telegrad.scipy import special
from tests.golden.store import HERE, close, load, replace

PROGRAMS = load(HERE / "programs.json")


def function(name: str, own: bool) -> Callable[..., Any]:
    if name == "getitem":
        return operator.getitem
    module, _, last = name.rpartition(".")
    numpys: Any = np if own else numpy
    place = special if module == "special" else getattr(numpys, module) if module else numpys
    found: Callable[..., Any] = getattr(place, last)
    return found


def replayed(program: dict[str, Any], leaves: list[Tensor]) -> Tensor:
    """The last value of the program."""
    values: list[Any] = list(leaves)
    own = int(program["name"]) % 2 == 0
    for name, args, options, pick in program["steps"]:
        given, named = replace([args, options], values)
        result = function(name, own)(*given, **named)
        values.append(result if pick is None else result[pick])
    found: Tensor = values[-1]
    return found


def slopes(roots: Tensor, leaves: list[Tensor], weights: Any, **options: bool) -> list[Tensor]:
    """Gradients of all leaves; 0 for those that nothing came of."""
    found = tg.grad(roots, leaves, weights, allow_unused=True, **options)
    return [
        tg.tensor(numpy.zeros_like(leaf.data)) if g is None else g
        for g, leaf in zip(found, leaves, strict=True)
    ]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program["name"])
def test_a_random_program_agrees_with_torch(program: dict[str, Any]) -> None:
    leaves = [tg.tensor(array, requires_grad=True) for array in program["inputs"]]
    twice = "directions" in program
    result = replayed(program, leaves)
    assert close(result.data, program["result"])
    gradients = slopes(result, leaves, program["weights"], create_graph=twice)
    for found, expected in zip(gradients, program["gradients"], strict=True):
        assert close(found.data, expected)
    if twice:
        along = program["directions"]
        total = sum(np.sum(np.real(g * d.conj())) for g, d in zip(gradients, along, strict=True))
        again = (
            slopes(total, leaves, None)
            if isinstance(total, Tensor) and total.requires_grad
            else [tg.tensor(numpy.zeros_like(array)) for array in program["inputs"]]
        )
        for found, expected in zip(again, program["second"], strict=True):
            assert close(found.data, expected)


def test_the_programs_are_many_deep_and_small() -> None:
    assert len(PROGRAMS) >= 300
    assert {3, 12} <= {len(program["steps"]) for program in PROGRAMS}
    assert len({name for program in PROGRAMS for name, *_ in program["steps"]}) > 150
    files = [*HERE.glob("*.json"), *HERE.glob("*.npz")]
    assert sum(path.stat().st_size for path in files) < 400_000
