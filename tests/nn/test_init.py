"""First values: their spread, and that parameters stay the objects and dtypes that they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from telegrad import manual_seed, nn
from telegrad.autograd import Tensor
from telegrad.nn import init

SHAPE = (60, 10, 5, 4)  # fan in 200, fan out 1200


def fresh(*shape: int, dtype: Any = np.float64) -> nn.Parameter:
    return nn.Parameter(np.zeros(shape, dtype))


def drawn(function: Callable[..., Any], *args: Any, shape: Any = SHAPE, **options: Any) -> Any:
    result = function(fresh(*shape), *args, rng=np.random.default_rng(0), **options)
    return result.data


@pytest.mark.parametrize(
    ("values", "std"),
    [
        (lambda: drawn(init.uniform_, -1.0, 3.0) - 1, 2 / np.sqrt(3)),
        (lambda: drawn(init.normal_, 5.0, 0.5) - 5, 0.5),
        (lambda: drawn(init.xavier_uniform_, 2.0), 2 * np.sqrt(2 / 1400)),
        (lambda: drawn(init.xavier_normal_, 2.0), 2 * np.sqrt(2 / 1400)),
        (lambda: drawn(init.kaiming_uniform_), np.sqrt(2 / 200)),
        (lambda: drawn(init.kaiming_uniform_, 1.0, "fan_out"), np.sqrt(1 / 1200)),
        (lambda: drawn(init.kaiming_normal_, nonlinearity="tanh"), 5 / 3 / np.sqrt(200)),
    ],
)
def test_the_spread(values: Any, std: float) -> None:
    found = values()
    assert abs(found.mean()) < std / 20
    assert found.std() == pytest.approx(std, rel=0.03)


def test_evenly_drawn_numbers_have_bounds() -> None:
    found = drawn(init.kaiming_uniform_, nonlinearity="relu")
    bound = np.sqrt(6 / 200)
    assert bound * 0.99 < np.abs(found).max() <= bound


def test_truncated() -> None:
    found = drawn(init.trunc_normal_, 1.0, 2.0, 0.0, 4.0)
    assert found.min() >= 0.0
    assert found.max() <= 4.0
    middle = ((found > 0.5) & (found < 1.5)).mean() / ((found > 3.0) & (found < 4.0)).mean()
    assert middle == pytest.approx(0.1974 / 0.0919, rel=0.06)  # as of the whole distribution


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4), (4, 2, 3), (6, 2, 2), (1, 1)])
def test_orthogonal(shape: Any) -> None:
    found = drawn(init.orthogonal_, 2.0, shape=shape).reshape(shape[0], -1)
    rows, columns = found.shape
    product = found @ found.T if rows <= columns else found.T @ found
    np.testing.assert_allclose(product, 4 * np.eye(min(rows, columns)), atol=1e-12)


def test_orthogonal_matrices_are_turned_evenly() -> None:
    """LAPACK's own choice of signs would make every matrix of one item 1."""
    rng = np.random.default_rng(0)
    signs = [init.orthogonal_(fresh(1, 1), rng=rng).data.item() for _ in range(20)]
    assert {round(sign) for sign in signs} == {-1, 1}


def test_constants() -> None:
    p = fresh(2, 3, dtype=np.float32)
    assert init.ones_(p) is p
    assert p.data.tolist() == [[1.0] * 3] * 2
    assert init.constant_(p, 0.5).data.max() == 0.5
    assert not init.zeros_(p).data.any()
    assert p.dtype == np.float32


def test_parameters_stay_parameters_and_graphs_keep_their_values() -> None:
    layer = nn.Linear(3, 2, rng=np.random.default_rng(0))
    before = layer.weight.data.copy()
    x = Tensor(np.ones((1, 3), np.float32), requires_grad=True)
    y = layer(x).sum()
    assert init.xavier_normal_(layer.weight) is layer.weight
    assert layer.weight.requires_grad
    assert layer.weight.dtype == np.float32
    assert (layer.weight.data != before).any()
    y.backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.data[0], before.sum(0), rtol=1e-6)


def test_one_seed_gives_the_same_in_every_dtype() -> None:
    for function in (init.normal_, init.uniform_, init.trunc_normal_, init.orthogonal_):
        found = []
        for dtype in (np.float64, np.float32):
            manual_seed(5)
            found.append(function(fresh(4, 3, dtype=dtype)).data)
        np.testing.assert_array_equal(found[0].astype(np.float32), found[1])


def test_gains() -> None:
    assert init.calculate_gain("linear") == 1.0
    assert init.calculate_gain("relu") == pytest.approx(2**0.5)
    assert init.calculate_gain("leaky_relu", 1.0) == 1.0
    assert init.calculate_gain("leaky_relu") == pytest.approx((2 / 1.0001) ** 0.5)


def test_what_they_refuse() -> None:
    refused: list[tuple[Any, str]] = [
        (lambda: init.xavier_normal_(fresh(3)), r"at least two axes .* shape is \(3,\)"),
        (lambda: init.orthogonal_(fresh(3)), "at least two axes"),
        (lambda: init.kaiming_normal_(fresh(3, 2), mode="fan"), "mode is 'fan_in' or 'fan_out'"),
        (lambda: init.calculate_gain("swish"), "no gain is known for 'swish'; one of conv1d"),
        (lambda: init.trunc_normal_(fresh(3), a=1.0, b=1.0), "a must be less than b"),
        (lambda: init.trunc_normal_(fresh(3), a=50.0, b=60.0), "next to nothing"),
    ]
    for call, words in refused:
        with pytest.raises(ValueError, match=words):
            call()
