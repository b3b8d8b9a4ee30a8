"""`Builder`: a straight-line program that grows step by step, computed as it grows."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from golden.torch_functions import FUNCTIONS

from tests.golden.store import Value, close, replace

__all__ = ["Builder", "UnfitError", "Value", "in_torch"]

LARGEST, SMALLEST, MOST_ITEMS = 60.0, 1e-3, 16
# Where the library chooses among right results: signs of eigenvectors, order of eigenvalues.
FREE = {"linalg.eigh", "linalg.eig", "linalg.eigvals", "linalg.svd", "linalg.qr"}


class UnfitError(Exception):
    """The values at hand do not suit the function; another one is tried."""


def in_torch(tree: Any) -> Any:
    """Returns arguments with tensors for arrays."""
    if isinstance(tree, np.ndarray):
        return torch.from_numpy(tree)
    if isinstance(tree, (list, tuple)):
        return type(tree)(in_torch(part) for part in tree)
    return {k: in_torch(part) for k, part in tree.items()} if isinstance(tree, dict) else tree


def numpy_function(name: str) -> Callable[..., Any]:
    """Returns NumPy's function, which says whether torch's stands for it."""
    if name == "getitem":
        return lambda a, place: a[place]
    if name == "interp":
        return lambda x, xp, fp: np.interp(x, xp, fp)
    module, _, last = name.rpartition(".")
    return getattr(getattr(np, module) if module else np, last)


class Builder:
    """A program under construction.

    Attributes:
        values: Of the inputs and of all steps so far.
        steps: What `tests/autograd/ops/test_golden.py` replays.
    """

    def __init__(self, rng: np.random.Generator, inputs: list[Any]) -> None:
        self.rng = rng
        self.inputs = inputs
        self.values = list(inputs)
        self.steps: list[list[Any]] = []

    @property
    def last(self) -> Value:
        """What the next step works on."""
        return Value(len(self.values) - 1)

    def of(self, value: Value) -> Any:
        """Returns its array."""
        return self.values[value.number]

    def emit(self, name: str, *args: Any, pick: int | None = None, **options: Any) -> Value:
        """Appends a step.

        Raises:
            UnfitError: Its result is no good, or torch cannot compute it.
            AssertionError: NumPy's result is another one than torch's.
        """
        step: list[Any] = [name, list(args), options, pick]
        given, named = replace([list(args), options], self.values)
        try:
            result = FUNCTIONS[name](*in_torch(given), **in_torch(named))
        except RuntimeError as error:
            raise UnfitError(f"{name}: {error}") from error
        found = (result if pick is None else result[pick]).resolve_conj().resolve_neg().numpy()
        self.check(name, found)
        if name not in FREE and not name.startswith("special."):
            with warnings.catch_warnings(action="ignore"):
                own = numpy_function(name)(*given, **named)
            own = np.asarray(own if pick is None else own[pick])
            alike = close(np.nan_to_num(found), np.nan_to_num(own), 1e-11)
            assert alike, f"{name} {given} {named}: {found} is not {own}"
        self.values.append(found.copy())
        self.steps.append(step)
        return self.last

    def check(self, name: str, found: Any) -> None:
        """Raises UnfitError for what is too large or small, in number or in numbers."""
        known = found[~np.isnan(found)] if name in ("where", "sort") else found
        largest = float(np.abs(known).max(initial=0.0))
        good = SMALLEST < largest < LARGEST and 0 < found.size <= MOST_ITEMS
        if not good and found.dtype.kind in "fc":
            raise UnfitError(f"{name}: {found.shape}, up to {largest}")

    def constant(self, *shape: int, low: float = -2.0, high: float = 2.0) -> Any:
        """Returns an array of numbers with few digits, which no gradient goes to."""
        return dyadic(self.rng, shape, low, high)

    def one_of(self, *choices: Any) -> Any:
        """Returns one of them."""
        return choices[int(self.rng.integers(len(choices)))]

    def need(self, holds: bool) -> None:
        """Raises UnfitError unless it holds."""
        if not holds:
            raise UnfitError


def dyadic(rng: np.random.Generator, shape: tuple[int, ...], low: float, high: float) -> Any:
    """Returns multiples of 1/1024 in an array; 0 and what is next to it are left out."""
    found = np.asarray(rng.integers(round(low * 1024), round(high * 1024), shape) / 1024)
    return np.asarray(np.where(np.abs(found) < 0.1, 0.25, found))
