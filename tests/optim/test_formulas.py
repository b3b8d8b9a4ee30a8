"""Each optimizer against its formula, written out for one number in float64."""

from __future__ import annotations

import copy
import itertools
import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from telegrad import optim, tensor
from telegrad.autograd import RowSparse
from tests.gpu.comparison import of

Step = Callable[[Any, Any, Any], Any]


def sgd(o: dict[str, Any]) -> Step:
    def step(x: Any, g: Any, s: Any) -> Any:
        g += o.get("weight_decay", 0) * x
        if not o.get("momentum"):
            return x - o["lr"] * g
        first = "v" not in s
        s["v"] = g if first else o["momentum"] * s["v"] + (1 - o.get("dampening", 0)) * g
        return x - o["lr"] * (g + o["momentum"] * s["v"] if o.get("nesterov") else s["v"])

    return step


def adagrad(o: dict[str, Any]) -> Step:
    def step(x: Any, g: Any, s: Any) -> Any:
        t = s["t"] = s.get("t", 0) + 1
        g += o.get("weight_decay", 0) * x
        s["sum"] = s.get("sum", o.get("initial_accumulator_value", 0.0)) + g * g
        rate = o.get("lr", 1e-2) / (1 + (t - 1) * o.get("lr_decay", 0))
        return x - rate * g / (math.sqrt(s["sum"]) + 1e-10)

    return step


def rmsprop(o: dict[str, Any]) -> Step:
    def step(x: Any, g: Any, s: Any) -> Any:
        a = o.get("alpha", 0.99)
        g += o.get("weight_decay", 0) * x
        s["sq"] = a * s.get("sq", 0) + (1 - a) * g * g
        s["mean"] = a * s.get("mean", 0) + (1 - a) * g if o.get("centered") else 0
        change = g / (math.sqrt(s["sq"] - s["mean"] ** 2) + 1e-8)
        s["v"] = o.get("momentum", 0) * s.get("v", 0) + change
        return x - o.get("lr", 1e-2) * s["v"]

    return step


def adam(o: dict[str, Any], decoupled: bool = False) -> Step:
    def step(x: Any, g: Any, s: Any) -> Any:
        t = s["t"] = s.get("t", 0) + 1
        lr, decay = o.get("lr", 1e-3), o.get("weight_decay", 0.01 if decoupled else 0)
        b1, b2 = o.get("betas", (0.9, 0.999))
        if decoupled:
            x -= lr * decay * x
        else:
            g += decay * x
        s["m"] = b1 * s.get("m", 0) + (1 - b1) * g
        s["v"] = b2 * s.get("v", 0) + (1 - b2) * g * g
        s["top"] = max(s.get("top", 0), s["v"])
        v = s["top"] if o.get("amsgrad") else s["v"]
        return x - lr * (s["m"] / (1 - b1**t)) / (math.sqrt(v / (1 - b2**t)) + o.get("eps", 1e-8))

    return step


def lion(o: dict[str, Any]) -> Step:
    def step(x: Any, g: Any, s: Any) -> Any:
        lr, (b1, b2) = o.get("lr", 1e-4), o.get("betas", (0.9, 0.99))
        m = s.get("m", 0)
        s["m"] = b2 * m + (1 - b2) * g
        return x - lr * (math.copysign(1, b1 * m + (1 - b1) * g) + o.get("weight_decay", 0) * x)

    return step


CASES: list[tuple[type[optim.Optimizer], Step, dict[str, Any]]] = [
    *(
        (optim.SGD, sgd(o), o)
        for o in (
            {"lr": 0.1},
            {"lr": 0.1, "weight_decay": 0.1},
            {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
            {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        )
    ),
    *(
        (optim.Adagrad, adagrad(o), o)
        for o in ({}, {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5})
    ),
    *(
        (optim.RMSprop, rmsprop(o), o)
        for o in (
            {},
            {"alpha": 0.9, "momentum": 0.9, "weight_decay": 0.1},
            {"centered": True, "momentum": 0.5, "lr": 0.001},
        )
    ),
    *(
        (optim.Adam, adam(o), o)
        for o in ({}, {"lr": 0.1, "betas": (0.5, 0.7), "eps": 1e-3, "weight_decay": 0.1, "amsgrad": True})
    ),
    *((optim.Lion, lion(o), o) for o in ({}, {"lr": 0.1, "betas": (0.5, 0.7), "weight_decay": 0.2})),
    *(
        (optim.AdamW, adam(o, decoupled=True), o)
        for o in ({}, {"lr": 0.1, "betas": (0.5, 0.7), "weight_decay": 0.2, "amsgrad": True})
    ),
]  # fmt: skip
NAMES = [f"{case[0].__name__}{sorted(case[2])}" for case in CASES]
every_case = pytest.mark.parametrize(("make", "step", "options"), CASES, ids=NAMES)


def gradients(steps: int, *shape: int) -> Any:
    scale = 1 + np.arange(steps).reshape(-1, *(1,) * len(shape)) % 3
    return np.random.default_rng(5).normal(size=(steps, *shape)) * scale


@every_case
@pytest.mark.parametrize("shape", [(2, 3), ()])
def test_the_formula(make: Any, step: Step, options: Any, shape: tuple[int, ...]) -> None:
    start = np.random.default_rng(4).normal(size=shape)
    x = tensor(start, requires_grad=True)
    optimizer = make([x], **options)
    expected = start.ravel().tolist()
    states: list[dict[str, float]] = [{} for _ in expected]
    for g in gradients(15, *shape):
        before = x.data
        x.grad = tensor(g)
        optimizer.step()
        assert x.data is not before
        expected = [step(*one) for one in zip(expected, g.ravel().tolist(), states, strict=True)]
        np.testing.assert_allclose(x.data.ravel(), expected, rtol=1e-13, atol=1e-15)


@every_case
def test_update_writes_into_its_state_alone(make: Any, step: Step, options: Any) -> None:
    optimizer = make([tensor(1.0, requires_grad=True)], **options)
    x, g, state = np.array([1.0, -2.0]), np.array([0.5, 1.0]), dict[str, Any]()
    for _ in range(3):
        before = [x.copy(), g.copy()]
        again, _ = optimizer.update(x, g, copy.deepcopy(state))
        new, after = optimizer.update(x, g, state)
        np.testing.assert_array_equal(new, again)
        np.testing.assert_array_equal([x, g], before)
        kept = [a for a in after.values() if isinstance(a, np.ndarray)]
        for one, other in itertools.combinations([x, g, new, *kept], 2):
            assert not np.shares_memory(one, other)
        x, state = new, after


@every_case
def test_a_step_needs_few_arrays_more(make: Any, step: Step, options: Any) -> None:
    size = 1 << 22
    x = tensor(np.zeros(size // 8), requires_grad=True)
    gradient = np.ones(size // 8)
    optimizer = make([x], **options)
    optimizer.apply({x: gradient})  # makes what it remembers
    tracemalloc.start()
    try:
        optimizer.apply({x: gradient})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.3 * size  # the new array, and some blocks


@every_case
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_dtype_stays(xp: Any, make: Any, step: Step, options: Any, dtype: Any) -> None:
    x = tensor(xp.ones(3, dtype=dtype), requires_grad=True)
    optimizer = make([x], **{**options, "lr": np.float64(0.1)})
    for _ in range(2):
        optimizer.apply({x: xp.ones(3)})
    assert of(xp, x)
    assert x.dtype == dtype
    state = optimizer.state_dict()["state"]
    kept = [a for s in state.values() for a in s.values() if isinstance(a, xp.ndarray)]
    assert all(a.dtype == dtype for a in kept)


@every_case
def test_it_goes_on_where_it_was(make: Any, step: Step, options: Any) -> None:
    def run(optimizer: Any, x: Any, some: Any) -> None:
        for g in some:
            optimizer.apply({x: g})

    all_gradients = gradients(6, 3)
    x = tensor(np.ones(3), requires_grad=True)
    first = make([x], **options)
    run(first, x, all_gradients[:3])
    state, middle = first.state_dict(), x.data.copy()
    run(first, x, all_gradients[3:])

    y = tensor(middle, requires_grad=True)
    second = make([y], **{**options, "lr": 55.0})
    second.load_state_dict(state)
    run(second, y, all_gradients[3:])
    np.testing.assert_array_equal(x.data, y.data)


@every_case
def test_row_sparse_gradients(make: Any, step: Step, options: Any) -> None:
    """Rows that are named twice count once; the result is that of the dense gradient."""
    rows, values = np.array([2, 0, 2]), np.random.default_rng(6).normal(size=(3, 2))
    x, y = (tensor(np.ones((4, 2)), requires_grad=True) for _ in range(2))
    one, other = make([x], **options), make([y], **options)
    for k in range(3):
        sparse = RowSparse(rows, values + k, (4, 2))
        one.apply({x: sparse})
        other.apply({y: sparse.to_dense()})
    np.testing.assert_allclose(x.data, y.data, rtol=1e-14)


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (optim.SGD, {"nesterov": True}, "needs momentum > 0"),
        (optim.SGD, {"momentum": float("nan")}, "momentum >= 0"),
        (optim.Adam, {"betas": (0.9, 1.0)}, "betas of two numbers >= 0 and < 1"),
        (optim.Adam, {"lr": -1.0}, "Adam needs lr >= 0"),
        (optim.AdamW, {"weight_decay": -1.0}, "AdamW needs lr >= 0"),
        (optim.Lion, {"betas": (0.9, 1.0)}, "betas of two numbers >= 0 and < 1"),
        (optim.RMSprop, {"alpha": 1.5}, "alpha >= 0 and <= 1"),
        (optim.Adagrad, {"eps": float("nan")}, "Adagrad needs .*eps >= 0, not lr="),
    ],
)
def test_numbers_out_of_range(make: Any, options: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make([tensor(1.0, requires_grad=True)], **options)


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (optim.SGD, {"lr": 0.1, "momentum": 1.0, "dampening": 0.5, "weight_decay": 0.01}),
        (optim.Adagrad, {"lr": 0.1, "lr_decay": 0.2, "weight_decay": 0.3}),
        (optim.Adam, {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1}),
        (optim.AdamW, {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1}),
        (optim.RMSprop, {"lr": 0.1, "alpha": 0.9, "eps": 1e-6, "weight_decay": 0.1}),
    ],
)
def test_options_may_be_given_by_position_in_torchs_order(make: Any, given: Any) -> None:
    optimizer = make([tensor(1.0, requires_grad=True)], *given.values())
    assert given.items() <= optimizer.param_groups[0].items()


def test_a_momentum_of_one_keeps_the_whole_velocity() -> None:
    x = tensor(1.0, requires_grad=True)
    optimizer = optim.SGD([x], 0.1, momentum=1.0)
    for _ in range(3):
        optimizer.apply({x: np.array(1.0)})
    np.testing.assert_allclose(x.data, 1.0 - 0.1 * (1 + 2 + 3))
