"""Every rule on arrays of the GPU: values and gradients are those of NumPy's arrays.

The samples are those of tests/autograd/samples, without what CuPy lacks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad.autograd import Tensor
from tests.autograd.samples.sample import Sample
from tests.autograd.samples.tables import SAMPLES
from tests.autograd.test_rules import FUNCTIONS, floating, mapped
from tests.gpu.comparison import close

# Options that CuPy's functions of that name do not take, as of CuPy 13.
ABSENT_OPTIONS = {"where", "initial", "correction", "order", "casting", "mean"}
ABSENT = {np.linalg.eig, np.linalg.eigvals}
SAMPLES_EACH = 4  # the exhaustive run is that of tests/autograd
KNOWN = {id(x) for home in (np, np.linalg, np.fft) for x in vars(home).values()}
OF_NUMPY = [f for f in FUNCTIONS if id(f) in KNOWN and f not in ABSENT]


def results_of(function: Any, sample: Sample, change: Any, leaves: list[Tensor]) -> list[Any]:
    """The floating-point results of a sample on arrays that `change` makes; fills `leaves`."""

    def leaf(x: Any) -> Tensor:
        made = Tensor(change(x), requires_grad=True)
        leaves.append(made)
        return made

    arguments, options = mapped(sample, leaf)
    found = floating(function(*moved(arguments, change), **moved(options, change)))
    return [found] if isinstance(found, Tensor) else list(found)


def moved(tree: Any, change: Any) -> Any:
    """The arrays that are not differentiated, moved too."""
    if isinstance(tree, dict):
        return {name: moved(x, change) for name, x in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(moved(x, change) for x in tree)
    return change(tree) if isinstance(tree, np.ndarray) else tree


def suitable(sample: Sample) -> bool:
    return not ABSENT_OPTIONS & sample.options.keys()


def check(xp: Any, function: Any) -> None:
    for sample in list(filter(suitable, SAMPLES[function]))[:SAMPLES_EACH]:
        here: list[Tensor] = []
        there: list[Tensor] = []
        expected = results_of(function, sample, lambda x: x, here)
        found = results_of(function, sample, xp.asarray, there)
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            close(a, b)
            a.backward(xp.ones(a.shape, dtype=a.dtype), retain_graph=True)
            b.backward(np.ones(b.shape, dtype=b.dtype), retain_graph=True)
        for x, y in zip(there, here, strict=True):
            if y.grad is not None:
                close(x.grad, y.grad)


@pytest.mark.parametrize("function", OF_NUMPY, ids=[each.__name__ for each in OF_NUMPY])
def test_values_and_gradients_are_numpys(xp: Any, function: Any) -> None:
    check(xp, function)


def test_functions_of_scipy(gpu: Any) -> None:
    for function in FUNCTIONS:
        if function not in OF_NUMPY and function not in ABSENT:
            check(gpu, function)
