"""The small engine of docs/internals/small-engine.md: what its program prints, and its gradients."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import telegrad as tg
from telegrad.testing import Cluster
from tests.conftest import Programs

PAGE = (Path(__file__).parents[2] / "docs" / "internals" / "small-engine.md").read_text()
PROGRAM = "\n\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
NAME = "small_engine"  # of the module, by which workers name its functions

# The worker of a call, the number of its function, the places of its arguments.
Call: TypeAlias = tuple[int, int, int, int]


@pytest.mark.long
def test_the_program_prints_what_the_page_shows(programs: Programs) -> None:
    script = programs.script(PROGRAM, "small_engine.py")
    output = programs.run(["telegrad", "run", "--nproc-per-node", "2", script])
    shown = re.findall(r"^    (\[0\] .*\n)", PAGE, re.MULTILINE)
    assert output == "".join(shown)


def test_the_program_has_at_most_200_lines() -> None:
    assert len([line for line in PROGRAM.splitlines() if line.strip()]) <= 200


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    path = tmp_path / f"{NAME}.py"
    path.write_text(PROGRAM)
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[NAME] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules[NAME])
        with Cluster(3) as cluster:
            yield cluster
    finally:
        del sys.modules[NAME]


def engine() -> Any:
    return sys.modules[NAME]


# -- functions of Tensors on one worker, and of the engine's arrays on three ------------------------


def product(x: Any, y: Any) -> Any:
    return x * y + x


def bent(x: Any, y: Any) -> Any:
    z = x @ y
    return np.tanh(z) if isinstance(z, tg.Tensor) else engine().tanh(z)


def first(x: Any, y: Any) -> Any:
    """Sends no gradient back for its second argument."""
    return x + x


def handed_on(x: Any, y: Any) -> Any:
    """Calls back to worker 0, and uses an argument before the call and after it."""
    return called(0, product, x + y, y) * x


FUNCTIONS: list[Callable[[Any, Any], Any]] = [product, bent, first, handed_on]


def called(worker: int, function: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    if isinstance(x, tg.Tensor):
        return function(x, y)
    return engine().call(f"worker{worker}", function, x, y)


def loss_of(calls: list[Call], values: list[Any]) -> Any:
    """Returns the loss of a program; it uses some of its results, or an argument alone."""
    values = list(values)
    for worker, function, i, j in calls:
        arguments = values[i % len(values)], values[j % len(values)]
        values.append(called(worker, FUNCTIONS[function], *arguments))
    last = values[-1] * values[0]
    return last.sum() if isinstance(last, tg.Tensor) else engine().total(last)


def small_gradients(name: str, calls: list[Call], arrays: list[Any]) -> list[Any]:
    leaves = [engine().leaf(each) for each in arrays]
    with engine().step(name) as context:
        engine().backward(loss_of(calls, leaves))
        return [context.gradients.get(each.node) for each in leaves]


@pytest.mark.long
@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 9), st.integers(0, 9)),
        max_size=6,
    ),
    st.integers(0, 2**16),
)
def test_the_gradients_are_those_of_telegrad(
    cluster: Cluster, calls: list[Call], seed: int
) -> None:
    arrays = [0.5 * np.random.default_rng([seed, k]).normal(size=(2, 2)) for k in range(3)]
    found = cluster.call(0, small_gradients, f"step {len(engine().CONTEXTS)}", calls, arrays)
    leaves = [tg.tensor(each, requires_grad=True) for each in arrays]
    loss_of(calls, leaves).backward()
    for mine, leaf in zip(found, leaves, strict=True):
        if leaf.grad is None:
            assert mine is None
        else:
            np.testing.assert_allclose(mine, leaf.grad.data, rtol=1e-9, atol=1e-12)
