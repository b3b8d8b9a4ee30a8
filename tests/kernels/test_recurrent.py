"""LSTM and GRU on CuPy arrays: the kernels against their twins of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad import kernels, nn
from telegrad.autograd import tensor
from tests.gpu.comparison import normal
from tests.gpu.launches import calls_of, launches
from tests.kernels.strided import DTYPES, agree, few, laid, layouts, small_grid

__all__ = ["small_grid"]

KINDS = {"lstm": (4, 2), "gru": (3, 1)}  # gates, states
SIZES = st.tuples(
    st.integers(1, 3), st.integers(0, 3), st.integers(1, 3), st.sampled_from([1, 2, 33, 130])
)


def both(
    cupy: Any, kind: str, sizes: Any, dtype: Any, layout: str, *, biased: bool, given: Any
) -> None:
    steps, batch, inputs, hidden = sizes
    gates, count = KINDS[kind]
    generator = np.random.default_rng(sum(sizes))

    def drawn(*shape: int) -> Any:
        return (0.3 * generator.normal(size=shape)).astype(dtype)

    x = drawn(steps, batch, inputs)
    states = tuple(drawn(batch, hidden) for _ in range(count))
    w_ih, w_hh = drawn(gates * hidden, inputs), drawn(gates * hidden, hidden)
    biases = [drawn(gates * hidden) if biased else None for _ in range(2)]
    g = [drawn(steps, batch, hidden), *(drawn(batch, hidden) for _ in states)]
    g = [each if wanted else None for each, wanted in zip(g, given, strict=False)]

    def there(array: Any) -> Any:
        return None if array is None else laid(cupy, array, layout)

    first = tuple(map(there, states))
    y, last, kept = kernels.recurrence_forward(kind, x, states, w_ih, w_hh, *biases)
    weights = there(w_ih), there(w_hh)
    found, ends, own = kernels.recurrence_forward(
        kind, there(x), first, *weights, *map(there, biases)
    )
    for actual, wanted in zip((found, *ends), (y, *last), strict=True):
        agree(cupy, actual, wanted, times=20)
    expected = kernels.recurrence_backward(
        kind, kept, y, x, states, (w_ih, w_hh), tuple(g), needs_x=True
    )
    made = kernels.recurrence_backward(
        kind, own, found, there(x), first, weights, tuple(map(there, g)), needs_x=True
    )
    for actual, wanted in zip(_flat(made), _flat(expected), strict=True):
        agree(cupy, actual, wanted, times=60)


@few
@given(
    st.sampled_from(list(KINDS)),
    SIZES,
    st.sampled_from(DTYPES[:3]),  # NumPy's products of bfloat16 are float32
    layouts,
    st.booleans(),
    st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_cupys_numbers_are_numpys(
    cupy: Any, kind: str, sizes: Any, dtype: Any, layout: str, biased: bool, given: Any
) -> None:
    both(cupy, kind, sizes, dtype, layout, biased=biased, given=given)


@pytest.mark.usefixtures("small_grid")
@pytest.mark.parametrize("kind", KINDS)
def test_more_columns_than_a_grid(cupy: Any, kind: str) -> None:
    sizes = (2, 3, 2, 300)
    both(cupy, kind, sizes, np.float64, "plain", biased=True, given=(True, True, True))


def _flat(found: Any) -> Any:
    of_x, of_first, of_weights = found
    return (of_x, *of_first, *of_weights)


@pytest.mark.parametrize(("layer", "most"), [(nn.LSTM, 210), (nn.GRU, 215)])
def test_launches_of_fifty_steps(stand_in_cupy: Any, layer: Any, most: int) -> None:
    model = layer(3, 4).to("cuda")
    x = stand_in_cupy.asarray(normal(0, 50, 2, 3, dtype=np.float32))
    given = tensor(x, requires_grad=True)
    with launches() as names:
        y, _ = model(given)
        y.backward(y.data)
    counted = names
    kind = layer.__name__.lower()
    assert counted.count(f"{kind}_forward") == counted.count(f"{kind}_backward") == 50
    assert counted.count("matmul") <= 105
    assert len(counted) <= most, sorted(counted)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_a_step_makes_one_call(stand_in_cupy: Any, layer: Any) -> None:
    model = layer(3, 4).to("cuda")

    def calls(steps: int) -> int:
        x = tensor(stand_in_cupy.asarray(normal(0, steps, 2, 3, dtype=np.float32)))

        def both_ways() -> None:
            y, _ = model(x)
            y.backward(y.data)

        return calls_of(both_ways)

    assert calls(30) - calls(10) == 2 * 20
