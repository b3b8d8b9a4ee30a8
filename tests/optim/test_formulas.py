"""What holds of every optimizer: its arrays, dtypes, rows and options."""

from __future__ import annotations

import copy
import itertools
import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from telegrad import optim, tensor
from telegrad.autograd import RowSparse
from tests.gpu.comparison import host, of

CASES: list[tuple[type[optim.Optimizer], dict[str, Any]]] = [
    (optim.SGD, {"lr": 0.1}),
    (optim.SGD, {"lr": 0.1, "weight_decay": 0.1}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (optim.Adagrad, {}),
    (
        optim.Adagrad,
        {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5},
    ),
    (optim.RMSprop, {}),
    (optim.RMSprop, {"alpha": 0.9, "momentum": 0.9, "weight_decay": 0.1}),
    (optim.RMSprop, {"centered": True, "momentum": 0.5, "lr": 0.001}),
    (optim.Adam, {}),
    (
        optim.Adam,
        {"lr": 0.1, "betas": (0.5, 0.7), "eps": 1e-3, "weight_decay": 0.1, "amsgrad": True},
    ),
    (optim.Lion, {}),
    (optim.Lion, {"lr": 0.1, "betas": (0.5, 0.7), "weight_decay": 0.2}),
    (optim.AdamW, {}),
    (optim.AdamW, {"lr": 0.1, "betas": (0.5, 0.7), "weight_decay": 0.2, "amsgrad": True}),
]
every_case = pytest.mark.parametrize(
    ("make", "options"), CASES, ids=[f"{make.__name__}{sorted(o)}" for make, o in CASES]
)


@pytest.mark.parametrize("options", [o for make, o in CASES if make is optim.Lion])
@pytest.mark.parametrize("shape", [(2, 3), ()])
def test_the_formula_of_lion(options: Any, shape: tuple[int, ...]) -> None:
    """The golden tests have the steps of the optimizers that torch has."""
    rng = np.random.default_rng(4)
    expected, mean = rng.normal(size=shape), np.zeros(shape)
    x = tensor(expected, requires_grad=True)
    optimizer = optim.Lion([x], **options)
    lr, decay = options.get("lr", 1e-4), options.get("weight_decay", 0)
    first, second = options.get("betas", (0.9, 0.99))
    for _ in range(15):
        g = rng.normal(size=shape)
        optimizer.apply({x: g})
        direction = np.sign(first * mean + (1 - first) * g)
        expected = expected - lr * (direction + decay * expected)
        mean = second * mean + (1 - second) * g
        np.testing.assert_allclose(x.data, expected, rtol=1e-13, atol=1e-15)


@every_case
def test_update_writes_into_its_state_alone(make: Any, options: Any) -> None:
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
def test_a_step_needs_few_arrays_more(make: Any, options: Any) -> None:
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
def test_the_dtype_stays_and_state_is_never_shorter_than_float32(
    xp: Any, make: Any, options: Any, dtype: Any
) -> None:
    x = tensor(xp.ones(3, dtype=dtype), requires_grad=True)
    optimizer = make([x], **{**options, "lr": np.float64(0.1)})
    for _ in range(2):
        optimizer.apply({x: xp.ones(3)})
    assert of(xp, x)
    assert x.dtype == dtype
    state = optimizer.state_dict()["state"]
    kept = [a for s in state.values() for a in s.values() if isinstance(a, xp.ndarray)]
    assert all(a.dtype == np.float32 for a in kept)


SHORT_STEPS: dict[str, Any] = {
    "zeros": [0.0] * 4,
    "small": [1e-4, -2e-4, 1e-4, 3e-4] * 3,
    "tiny": [6e-8, -6e-8, 6e-8],
    "large": [300.0, -400.0],
}


@every_case
@pytest.mark.parametrize("name", SHORT_STEPS)
def test_short_floats_step_as_float32_does(xp: Any, make: Any, options: Any, name: str) -> None:
    """Small squares and `eps` vanish in float16: a gradient of zero made NaN of a parameter."""
    _compare_short_steps(xp, make, options, np.float16, SHORT_STEPS[name])
    if xp is np:  # CuPy 13 has no bfloat16
        _compare_short_steps(xp, make, options, ml_dtypes.bfloat16, SHORT_STEPS[name])


def _compare_short_steps(xp: Any, make: Any, options: Any, dtype: Any, steps: list[float]) -> None:
    start = np.array([1.0, -0.5, 0.0, 100.0])
    x = tensor(xp.asarray(start.astype(dtype)), requires_grad=True)
    exact = tensor(start.astype(np.float32), requires_grad=True)
    short, wide = make([x], **options), make([exact], **options)
    for g in steps:
        gradient = np.full(4, g, dtype)
        before = exact.data.astype(dtype)
        x.data, exact.data = xp.asarray(before), before.astype(np.float32)
        short.apply({x: xp.asarray(gradient)})
        wide.apply({exact: gradient.astype(np.float32)})
        found = host(x.data).astype(np.float32)
        assert np.isfinite(found).all()
        tolerance = 2.0**-9 if dtype is np.float16 else 2.0**-6
        np.testing.assert_allclose(found, exact.data, rtol=tolerance, atol=1e-7)


@every_case
def test_row_sparse_gradients(make: Any, options: Any) -> None:
    """Rows that are named twice count once; the result is that of the dense gradient."""
    x, y = (tensor(np.ones((4, 2)), requires_grad=True) for _ in range(2))
    one, other = make([x], **options), make([y], **options)
    for rows in ([2, 0, 2], [3], [1, 2], []):
        values = np.random.default_rng(len(rows)).normal(size=(len(rows), 2))
        sparse = RowSparse(np.array(rows, np.int64), values, (4, 2))
        one.apply({x: sparse})
        other.apply({y: sparse.to_dense()})
    np.testing.assert_allclose(x.data, y.data, rtol=1e-14)
    for key, value in other.state_dict()["state"].get(0, {}).items():
        np.testing.assert_allclose(one.state_dict()["state"][0][key], value, rtol=1e-14)


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (optim.SGD, {"nesterov": True}, "needs momentum > 0"),
        (optim.SGD, {"momentum": float("nan")}, "momentum >= 0"),
        (optim.SGD, {"lr": float("nan")}, "SGD needs lr >= 0"),
        (optim.SGD, {"weight_decay": -0.1}, "weight_decay >= 0"),
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
