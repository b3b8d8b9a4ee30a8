"""Graphs of 100,000 operations, graphs in many threads, and autograd without the network."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import telegrad as tg
from telegrad.autograd import Node, Tensor, is_grad_enabled, no_grad, tensor
from tests.autograd.threads import in_threads

ROOT = Path(__file__).parents[3]
MANY = 100_000


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def objects_left(kinds: tuple[type, ...]) -> int:
    return sum(issubclass(type(x), kinds) for x in gc.get_objects())  # `__class__` may lie


def chained(x: Any) -> Any:
    y = x
    for _ in range(MANY // 2):
        y = y * 0.5 + x
    return y


def wide(x: Any) -> Any:
    """As many operations on one leaf, joined as a tree of sums."""
    parts = [x * 2.0 for _ in range(MANY // 2)]
    while len(parts) > 1:
        parts = [np.add(*parts[i : i + 2]) for i in range(0, len(parts) - 1, 2)] + (
            parts[-1:] if len(parts) % 2 else []
        )
    return parts[0]


@pytest.mark.long
@pytest.mark.parametrize(
    ("graph", "slope", "uses"),
    [
        (chained, 2.0, ["drop", "backward"]),
        pytest.param(
            wide, float(MANY), ["drop", "backward", "grad", "keep"], marks=pytest.mark.long
        ),
        pytest.param(chained, 2.0, ["grad", "keep"], marks=pytest.mark.long),
    ],
    ids=["chained", "wide", "chained, other ways"],
)
def test_100_000_operations_neither_recurse_nor_leak(
    graph: Any, slope: float, uses: list[str]
) -> None:
    """Forward, backward, and a graph that is dropped before any: all is freed by itself."""
    x = tensor(1.0, requires_grad=True)
    with without_garbage_collection():
        before = objects_left((Node, Tensor))
        for use in uses:
            y = graph(x)
            if use == "backward":
                y.backward()
                assert x.grad is not None
                assert x.grad.item() == pytest.approx(slope)
                x.grad = None
            elif use == "grad":
                assert tg.grad(y, x)[0].item() == pytest.approx(slope)
            elif use == "keep":
                y.backward(retain_graph=True)
                x.grad = None
            del y
            assert objects_left((Node, Tensor)) == before
        assert gc.collect() == 0  # and nothing was left in a cycle


def random_program(seed: int, x: Tensor) -> list[Any]:
    """A graph of its own for each seed: value, gradient, second derivative, and grad modes."""
    rng = np.random.default_rng(seed)
    weights = tensor(rng.normal(size=(5, 5)) / 3, requires_grad=True)
    y: Any = x
    for step in rng.integers(0, 6, size=40):
        if step == 0:
            y = np.tanh(weights @ y)
        elif step == 1:
            y = y * x + 0.5
        elif step == 2:
            y = np.sin(y)[::-1]
        elif step == 3:
            with no_grad():
                constant = np.exp(-y * y)
            y = y * constant
        elif step == 4:
            y = np.where(y > 0, y, 0.1 * y)
        else:
            y = tg.recompute(lambda h: h / (1.0 + h * h), y)
    loss = (y * y).sum()
    first = tg.grad(loss, [x, weights], create_graph=True)
    second = tg.grad((first[0] ** 2).sum() + (first[1] ** 2).sum(), [x, weights])
    return [loss.data, *(g.data for g in (*first, *second)), np.asarray(is_grad_enabled())]


@pytest.mark.long
def test_different_graphs_in_eight_threads_give_right_answers() -> None:
    x = tensor(np.linspace(-1.0, 1.0, 5), requires_grad=True)  # the leaf is shared
    expected = [random_program(seed, x) for seed in range(8)]
    for _ in range(3):
        found = in_threads(*[partial(random_program, seed, x) for seed in range(8)])
        for one, other in zip(found, expected, strict=True):
            for a, b in zip(one, other, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_a_trace_of_one_thread_does_not_change_anothers_gradient() -> None:
    """d/dx [x * d/dy (x y) at y = 2] at x = 3 is 6, whatever other threads begin and end meanwhile.

    An engine that counts nested traces in one variable for all threads gives 2 here (autograd does,
    as of 1.8): A begins, B begins, A ends, and B's inner trace takes the number of its outer one.
    """
    a_inside, b_inside, a_over = threading.Event(), threading.Event(), threading.Event()

    def inner(x: Any) -> Any:
        return x * tg.value_and_grad(lambda y: x * y, create_graph=True)(2.0)[1]

    def of_a(x: Any) -> Any:
        a_inside.set()
        assert b_inside.wait(30)
        return x * x

    def of_b(x: Any) -> Any:
        b_inside.set()
        assert a_over.wait(30)
        return inner(x)

    def run_a() -> Any:
        try:
            return tg.value_and_grad(of_a)(3.0)[1].item()
        finally:
            a_over.set()

    def run_b() -> Any:
        assert a_inside.wait(30)
        return tg.value_and_grad(of_b)(3.0)[1].item()

    assert tg.value_and_grad(inner)(3.0)[1].item() == 6.0
    assert in_threads(run_a, run_b) == [6.0, 6.0]


def test_a_grad_mode_is_as_it_was_after_errors() -> None:
    def fails(x: Any) -> Any:
        raise ZeroDivisionError

    for _ in range(3):
        with pytest.raises(ZeroDivisionError), no_grad():
            tg.value_and_grad(fails)(1.0)
        with pytest.raises(ZeroDivisionError):
            tg.recompute(fails, tensor(1.0, requires_grad=True))
        with pytest.raises(ZeroDivisionError), tg.detect_anomaly():
            fails(1.0)
    assert is_grad_enabled()
    assert tg.grad(tensor(3.0, requires_grad=True) ** 2, []) == ()


WITHOUT_GRPC = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"grpc", "google", "cryptography", "cupy", "scipy", "msgpack"}:
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Refuse())
import numpy as np
import telegrad as tg
import telegrad.numpy as tnp
from telegrad import nn, optim

model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
optimizer = optim.SGD(model.parameters(), lr=0.1)
x = np.ones((2, 3), np.float32)
for _ in range(2):
    optimizer.zero_grad()
    loss = tnp.mean(tg.recompute(model, tg.as_tensor(x)) ** 2)
    loss.backward()
    optimizer.step()
assert tg.hessian(lambda x: tnp.linalg.norm(x) ** 2)(np.ones(2)).shape == (2, 2)
with tg.detect_anomaly():
    assert tg.gradcheck(np.sin, tg.tensor([1.0], requires_grad=True))
from telegrad.autograd import extend
assert extend.find(np.roots) is None  # loads all rules
loaded = {name.split(".")[0] for name in sys.modules}
assert not loaded & {"grpc", "google", "cupy", "msgpack", "asyncio", "scipy"}, loaded
try:
    tg.scipy
except ImportError as error:
    assert "pip install 'telegrad[scipy]'" in str(error)
else:
    raise SystemExit("no error")
"""


def test_autograd_runs_where_neither_grpc_nor_scipy_is_installed() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_GRPC],
        cwd=ROOT, capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
