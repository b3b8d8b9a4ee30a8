"""A stand-in for scikit-learn, whose import takes a second: its digits, and nothing else."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np

__all__ = ["put_in_place"]


def put_in_place() -> None:
    """Lets `from sklearn.datasets import load_digits` read the same file without scikit-learn.

    For programs of a test that train on the digits; each process calls it first.
    """
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    path = Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")

    def load_digits() -> SimpleNamespace:
        table = np.loadtxt(path, delimiter=",")
        return SimpleNamespace(data=table[:, :-1], target=table[:, -1].astype(int))

    datasets = ModuleType("sklearn.datasets")
    datasets.load_digits = load_digits  # type: ignore[attr-defined]
    sys.modules |= {"sklearn": ModuleType("sklearn"), "sklearn.datasets": datasets}
