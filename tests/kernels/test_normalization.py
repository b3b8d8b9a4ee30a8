"""Normalisation of CuPy arrays: the kernels against their twins of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad import kernels, nn
from telegrad.autograd import tensor
from telegrad.kernels import normalization
from tests.gpu.comparison import host, normal
from tests.gpu.launches import launches
from tests.kernels.strided import DTYPES, EDGES, agree, compiles, few, laid, layouts, small_grid

__all__ = ["small_grid"]

LENGTHS = st.integers(1, 9) | st.sampled_from([n for n in EDGES if n])


@st.composite
def cases(draw: Any) -> tuple[Any, Any]:
    """A shape, and the axes that are normalised together."""
    over = draw(st.sampled_from([None, 1, 2, "groups"]))
    if over == "groups":
        length = draw(st.sampled_from([(), (1,), (3, 4), (8,), (32,), (33,), (1025,)]))
        counts = draw(st.integers(0, 3)), draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 9]))
        return (*counts, *length), over
    shape = [draw(st.integers(0, 5)), draw(st.integers(1, 5)), draw(LENGTHS)]
    if over is None:
        shape = [draw(st.integers(1, 5)), draw(st.integers(0, 5)), draw(LENGTHS)]
    return tuple(shape), over


def both(cupy: Any, shape: Any, over: Any, dtype: Any, layout: str, given: Any, **how: Any) -> None:
    """Compares forward and backward."""
    generator = np.random.default_rng(sum(shape))
    x, g = (generator.normal(size=shape).astype(dtype) for _ in range(2))
    size = {None: shape[1:2], "groups": shape[1:3]}.get(over) or shape[3 - over :]
    parts = [generator.normal(size=size).astype(dtype) if one else None for one in given]
    x_there, g_there = laid(cupy, x, layout), laid(cupy, g, layout)
    parts_there = [None if part is None else laid(cupy, part, layout) for part in parts]
    expected: Any = kernels.normalize(x, *parts, over=over, **how)
    found: Any = kernels.normalize(x_there, *parts_there, over=over, **how)
    for actual, wanted in zip(found, expected, strict=True):
        agree(cupy, actual, wanted, times=10)
    centred = {"over": over, "centred": how.get("centred", True)}
    mean, scale = expected.mean, expected.scale
    kept = cupy.asarray(mean), cupy.asarray(scale)
    for parameters in (True, False):
        found = kernels.normalize_gradients(
            g_there.astype(expected.y.dtype),
            x_there,
            *kept,
            parts_there[0],
            parameters=parameters,
            **centred,
        )
        wanted = kernels.normalize_gradients(
            g.astype(expected.y.dtype), x, mean, scale, parts[0], parameters=parameters, **centred
        )
        for actual, each in zip(found, wanted, strict=True):
            if each is None:
                assert actual is None
            else:
                agree(cupy, actual, each, times=100, dtype=dtype)


@compiles
@few
@given(
    cases(),
    st.sampled_from(DTYPES),
    layouts,
    st.tuples(st.booleans(), st.booleans()),
    st.booleans(),
)
def test_cupys_numbers_are_numpys(
    cupy: Any, case: Any, dtype: Any, layout: str, given: Any, centred: bool
) -> None:
    shape, over = case
    both(cupy, shape, over, dtype, layout, given, centred=centred, eps=1e-3)


@pytest.mark.usefixtures("small_grid")
@pytest.mark.parametrize("over", [1, 2, None, "groups"])
def test_more_rows_and_columns_than_a_grid(cupy: Any, over: Any) -> None:
    both(cupy, (3, 4, 80), over, np.float32, "plain", (True, True))


@pytest.mark.parametrize(
    ("shape", "over"),
    [
        ((3, 2, 80), None),
        ((5, 7, 33), None),
        ((1, 3, 40), None),
        ((2, 2, 3, 40), "groups"),
        ((1, 1, 70, 9), "groups"),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_several_blocks_for_each_channel_or_group(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, shape: Any, over: Any, dtype: Any
) -> None:
    monkeypatch.setattr(normalization, "_LONG_BYTES", 0)
    both(cupy, shape, over, dtype, "plain", (True, True))


def test_more_columns_than_shared_memory_holds(cupy: Any) -> None:
    both(cupy, (2, 3, 6200), 1, np.float32, "plain", (True, True))


def test_weights_of_another_dtype(cupy: Any) -> None:
    x, weight = np.ones((2, 8), np.float16), np.arange(8, dtype=np.float32)
    x[:, ::2] = -1
    found = kernels.normalize(cupy.asarray(x), cupy.asarray(weight), cupy.asarray(weight[::-1]))
    expected = kernels.normalize(x, weight, weight[::-1])
    for actual, wanted in zip(found, expected, strict=True):
        agree(cupy, actual, wanted)


def test_far_numbers_keep_their_variance(cupy: Any) -> None:
    x = (1e4 + np.random.default_rng(0).normal(size=(3, 64))).astype(np.float32)
    found = host(kernels.normalize(cupy.asarray(x)).variance)
    np.testing.assert_allclose(found[:, 0], x.astype(np.float64).var(-1), rtol=1e-3)


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_what_does_not_fit(cupy: Any, name: str) -> None:
    x = cupy.ones((2, 3), dtype=np.float32)
    wrong: list[tuple[Any, str]] = [
        (x[:, 0], f"{name} has 2 items, 3 needed"),
        (np.ones(3, np.float32), f"{name} of normalize_forward is in host memory"),
    ]
    for part, words in wrong:
        given: dict[str, Any] = {name: part}
        with pytest.raises(ValueError, match=words):
            kernels.normalize(x, **given)


@pytest.mark.parametrize(
    ("layer", "layer_of_channels"),
    [
        (lambda x, w, b: nn.functional.layer_norm(x, (4,), w, b), False),
        (lambda x, w, b: nn.functional.rms_norm(x, (4,), w), False),
        (lambda x, w, b: nn.functional.group_norm(x, 2, w, b), False),
        (lambda x, w, b: nn.functional.batch_norm(x, None, None, w, b, training=True), True),
    ],
    ids=["layer", "rms", "group", "batch"],
)
def test_one_launch_forward_and_at_most_two_back(
    stand_in_cupy: Any, layer: Any, layer_of_channels: bool
) -> None:
    def leaf(*shape: int) -> Any:
        values = normal(0, *shape, dtype=np.float32)
        return tensor(stand_in_cupy.asarray(values), requires_grad=True)

    x, weight, bias = leaf(3, 4), leaf(4), leaf(4)
    gradient = stand_in_cupy.asarray(normal(1, 3, 4, dtype=np.float32))
    with launches() as forward:
        y = layer(x, weight, bias)
    with launches() as backward:
        y.backward(gradient)
    assert forward == ["normalize_forward"]
    more = [] if layer_of_channels else ["normalize_columns"]
    copies = "array"  # of leaves' own, as the gradients of weight and bias lie in one array
    assert [name for name in backward if name != copies] == ["normalize_backward", *more]
    here = [tensor(host(each), requires_grad=True) for each in (x, weight, bias)]
    layer(*here).backward(host(gradient))
    for there, expected in zip((x, weight, bias), here, strict=True):
        if expected.grad is not None:
            agree(stand_in_cupy, there.grad.data, expected.grad.data, times=10)
