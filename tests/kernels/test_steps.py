"""Optimizer steps on CuPy arrays, in one launch, against those of NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad import optim, tensor
from telegrad.autograd import RowSparse
from tests.gpu.comparison import host, normal
from tests.gpu.launches import calls_of, launches
from tests.kernels.strided import DTYPES, EDGES, agree, few, laid, layouts, small_grid

__all__ = ["small_grid"]

OPTIMIZERS: list[tuple[type[optim.Optimizer], dict[str, Any]]] = [
    (optim.SGD, {"lr": 0.1, "weight_decay": 0.1}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (optim.Adam, {"lr": 0.1, "weight_decay": 0.1}),
    (optim.Adam, {"lr": 0.1, "amsgrad": True}),
    (optim.AdamW, {"lr": 0.1, "eps": 1e-3}),
    (optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.5, "lr_decay": 0.1}),
    (optim.Lion, {"lr": 0.1, "weight_decay": 0.1}),
    (optim.RMSprop, {"lr": 0.1}),
    (optim.RMSprop, {"lr": 0.1, "momentum": 0.9, "centered": True, "weight_decay": 0.1}),
]
SHAPES = st.lists(
    st.one_of(st.sampled_from([(n,) for n in EDGES]), st.lists(st.integers(0, 4)).map(tuple)),
    min_size=1,
    max_size=5,
)


def made(xp: Any, arrays: list[Any]) -> list[Any]:
    return [tensor(xp.asarray(x), requires_grad=True) for x in arrays]


def compare(cupy: Any, there: list[Any], here: list[Any], states: Any, dtype: Any) -> None:
    for found, expected in zip(there, here, strict=True):
        agree(cupy, found.data, expected.data, times=20, dtype=dtype)
    for i, state in states[1].items():
        for name, x in state.items():
            if name == "step":
                assert int(states[0][i][name]) == x
            else:
                agree(cupy, states[0][i][name], x, times=20, dtype=dtype)


@few
@given(st.sampled_from(OPTIMIZERS), SHAPES, st.sampled_from(DTYPES), layouts, st.booleans())
def test_cupys_steps_are_numpys(
    cupy: Any, which: Any, shapes: Any, dtype: Any, layout: str, counted: bool
) -> None:
    kind, options = which
    if np.dtype(dtype).itemsize == 2 and kind is optim.Lion:
        dtype = np.float32  # signs turn near 0
    generator = np.random.default_rng(len(shapes))
    start = [generator.normal(size=shape).astype(dtype) for shape in shapes]
    here, there = made(np, start), made(cupy, start)
    ours, theirs = kind(here, **options), kind(there, **options)
    for k in range(4):
        gradients = [generator.normal(size=shape).astype(dtype) for shape in shapes]
        skip = k == 1 and counted
        on_gpu = {
            p: laid(cupy, g, layout if g.ndim else "plain")
            for p, g in zip(there, gradients, strict=True)
        }
        theirs.apply(on_gpu, skip=cupy.asarray(np.array(skip)) if counted else skip, scale=0.5)
        ours.apply(dict(zip(here, gradients, strict=True)), skip=skip, scale=0.5)
    states = theirs.state_dict()["state"], ours.state_dict()["state"]
    compare(cupy, there, here, states, np.float16 if dtype == np.float16 else dtype)


@pytest.mark.parametrize(
    ("kind", "options", "dtype"),
    [
        *((kind, options, np.float32) for kind, options in OPTIMIZERS),
        *((kind, options, np.complex64) for kind, options in OPTIMIZERS if kind is optim.SGD),
    ],
)
def test_a_first_step_that_is_skipped_is_not_the_first(
    cupy: Any, kind: Any, options: dict[str, Any], dtype: Any
) -> None:
    found = []
    for xp in (np, cupy):
        (x,) = made(xp, [np.ones(3, dtype)])
        optimizer = kind([x], **options)
        for skip in (True, False, False):
            given_there = skip if xp is np else cupy.asarray(np.array(skip))
            optimizer.apply({x: xp.asarray(np.full(3, 0.5, dtype))}, skip=given_there)
        found.append(host(x.data))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


@pytest.mark.usefixtures("small_grid")
@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS)
def test_more_chunks_than_blocks(cupy: Any, kind: Any, options: dict[str, Any]) -> None:
    start = [np.random.default_rng(0).normal(size=n).astype(np.float32) for n in (40001, 3, 20000)]
    here, there = made(np, start), made(cupy, start)
    for _ in range(2):
        kind(here, **options).apply(dict(zip(here, start, strict=True)))
        kind(there, **options).apply(dict(zip(there, map(cupy.asarray, start), strict=True)))
    compare(cupy, there, here, ({}, {}), np.float32)


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS)
def test_one_launch_for_all_parameters(
    stand_in_cupy: Any, kind: Any, options: dict[str, Any]
) -> None:
    cupy = stand_in_cupy
    parameters = made(cupy, [np.ones((3, i), np.float32) for i in range(1, 30)])
    optimizer = kind(parameters, **options)
    for p in parameters:
        p.grad = tensor(cupy.ones(p.shape, np.float32))
    optimizer.step()
    scale, no = cupy.asarray(np.array(0.5, np.float32)), cupy.asarray(np.array(False))
    for given_there in ({}, {"scale": scale}, {"skip": no, "scale": scale}, {"skip": no}):
        with launches() as seen:
            optimizer.step(**given_there)
        assert len(seen) == 1, seen


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam])
def test_a_parameter_takes_few_calls(stand_in_cupy: Any, kind: Any) -> None:
    def calls(count: int) -> int:
        parameters = made(stand_in_cupy, [np.ones(3, np.float32)] * count)
        for p in parameters:
            p.grad = tensor(p.data)
        return calls_of(kind(parameters).step)

    assert calls(30) - calls(10) <= 9 * 20


@few
@given(
    st.sampled_from([(optim.SGD, {"lr": 0.1}), (optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1})]),
    st.sampled_from([(), (1,), (4,), (5,), (0,), (3, 8), (1030,)]),
    st.lists(st.integers(0, 6), max_size=9),
    st.sampled_from(DTYPES),
)
def test_cupys_steps_of_rows_are_numpys(
    cupy: Any, which: Any, shape: Any, rows: list[int], dtype: Any
) -> None:
    kind, options = which
    start = [normal(0, 7, *shape).astype(dtype)]
    here, there = made(np, start), made(cupy, start)
    ours, theirs = kind(here, **options), kind(there, **options)
    for k in range(3):
        numbers, values = np.array(rows, np.int64), normal(k, len(rows), *shape).astype(dtype)
        both: list[Any] = [
            RowSparse(xp.asarray(numbers), xp.asarray(values), (7, *shape)) for xp in (np, cupy)
        ]
        ours.apply({here[0]: both[0]})
        theirs.apply({there[0]: both[1]})
    states = theirs.state_dict()["state"], ours.state_dict()["state"]
    compare(cupy, there, here, states, dtype)


def test_rows_are_stepped_in_one_launch(stand_in_cupy: Any) -> None:
    cupy = stand_in_cupy
    (p,) = made(cupy, [np.ones((7, 3), np.float32)])
    optimizer = optim.Adagrad([p])
    gradient: Any = RowSparse(
        cupy.asarray(np.array([2, 5])), cupy.ones((2, 3), dtype=np.float32), (7, 3)
    )
    optimizer.apply({p: gradient})
    with launches() as seen:
        optimizer.apply({p: gradient})
    assert seen == ["unique", "zeros", "add_rows", "adagrad_rows"]


def test_groups_and_steps_apart(cupy: Any) -> None:
    """Parameters whose options or counts of steps differ are stepped each by its own."""
    start = [np.full(3, i + 1.0, np.float32) for i in range(4)]
    found = []
    for xp in (np, cupy):
        p = made(xp, start)
        optimizer = optim.Adam([{"params": p[:2], "lr": 0.5}, {"params": p[2:]}], lr=0.1)
        for some in (p[1:3], p):
            optimizer.apply({x: xp.asarray(x.data) for x in some})
        found.append([host(x.data) for x in p])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


def test_a_class_that_changes_update_has_no_kernel(cupy: Any) -> None:
    class Twice(optim.SGD):
        def update(self, parameter: Any, gradient: Any, state: Any, *args: Any, **o: Any) -> Any:
            return parameter - 2 * o["lr"] * gradient, state

    (x,) = made(cupy, [np.ones(3, np.float32)])
    Twice([x], lr=0.25).apply({x: cupy.ones(3, np.float32)})
    assert host(x.data).tolist() == [0.5, 0.5, 0.5]


def test_graphs_keep_the_values_of_before(cupy: Any) -> None:
    (x,) = made(cupy, [np.ones(3, np.float32)])
    y = (x * x).sum()
    optim.SGD([x], lr=1.0).apply({x: cupy.ones(3, np.float32)})
    y.backward()
    assert host(x.grad.data).tolist() == [2.0, 2.0, 2.0]
    assert host(x.data).tolist() == [0.0, 0.0, 0.0]


def test_numbers_that_are_not_finite(cupy: Any) -> None:
    with np.errstate(all="ignore"):
        for (kind, options), bad in itertools.product(OPTIMIZERS, [np.inf, np.nan]):
            found = []
            for xp in (np, cupy):
                (x,) = made(xp, [np.ones(3, np.float32)])
                optimizer = kind([x], **options)
                for value in (bad, 1.0):
                    optimizer.apply({x: xp.asarray(np.array([1, value, 1], np.float32))})
                found.append(np.isfinite(host(x.data)).tolist())
            assert found[0] == found[1], (kind, options, bad)
