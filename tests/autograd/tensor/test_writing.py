"""What would write into a Tensor behind the count of its changes is refused, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import telegrad.numpy as tnp
from telegrad.autograd import Tensor, tensor
from telegrad.errors import AutogradError

A = np.array([0.5, 1.5])
untyped: Any = np  # NumPy's types know nothing of Tensors

WRITES: dict[str, Callable[[Tensor], Any]] = {
    "copyto": lambda t: untyped.copyto(t, A),
    "copyto dst": lambda t: tnp.copyto(dst=t, src=A),
    "put": lambda t: untyped.put(t, [0], 5.0),
    "place": lambda t: untyped.place(t, A > 1, 5.0),
    "putmask": lambda t: untyped.putmask(t, A > 1, 5.0),
    "put_along_axis": lambda t: untyped.put_along_axis(t, untyped.array([0]), 5.0, 0),
    "fill_diagonal": lambda t: untyped.fill_diagonal(t.reshape(1, 2), 5.0),
    "add.at": lambda t: untyped.add.at(t, [0], 5.0),
    "add, out": lambda t: untyped.add(A, A, out=t),
    "add, third": lambda t: untyped.add(A, A, t),
    "floor, second": lambda t: untyped.floor(A, t),
    "floor of telegrad, second": lambda t: tnp.floor(A, t),
    "modf": lambda t: untyped.modf(A, t, t),
    "matmul": lambda t: untyped.matmul(A[:, None], A[None, :1], out=t.reshape(2, 1)),
    "sum": lambda t: untyped.sum(A, out=t[0]),
    "sum of telegrad": lambda t: tnp.sum(A, None, None, t[0]),
    "round, third": lambda t: untyped.round(A, 1, t),
    "argmax, third": lambda t: untyped.argmax(A, 0, t),
    "clip, fourth": lambda t: untyped.clip(A, 0.0, 1.0, t),
    "nansum, fourth": lambda t: untyped.nansum(A[None], 0, None, t),
    "cumsum": lambda t: untyped.cumsum(A, out=t),
    "concatenate": lambda t: untyped.concatenate([A[:1], A[1:]], out=t),
    "take": lambda t: untyped.take(A, [0, 1], 0, t),
    "median": lambda t: untyped.median(A, 0, t[0]),
    "nan_to_num": lambda t: untyped.nan_to_num(t, copy=False),
    "einsum": lambda t: untyped.einsum("i->i", A, out=t),
}


@pytest.mark.parametrize("needs", [False, True], ids=["constant", "leaf"])
@pytest.mark.parametrize("name", WRITES)
def test_writing_into_a_tensor_is_refused(name: str, needs: bool) -> None:
    t = tensor([1.0, 2.0], requires_grad=needs)
    with pytest.raises((TypeError, AutogradError), match=r"write|take|out"):
        WRITES[name](t)
    assert t.data.tolist() == [1.0, 2.0]


def test_into_an_array_of_ones_own_numpy_writes() -> None:
    place = untyped.zeros(2)
    untyped.copyto(place, tensor([1.0, 2.0]))
    untyped.put(place, [0], tensor(5.0))
    assert place.tolist() == [5.0, 2.0]


@pytest.mark.parametrize(
    "function",
    [
        lambda t, out: untyped.add(t, t, out=out),
        lambda t, out: untyped.nanmean(t, 0, None, out),
        lambda t, out: untyped.floor(t, out),
        lambda t, out: untyped.round(t, 1, out),
        lambda t, out: tnp.clip(t, 0.0, 1.0, out),
    ],
)
def test_an_array_to_write_into_is_not_left_empty_silently(function: Any) -> None:
    with pytest.raises(TypeError, match="out"):
        function(tensor([1.0, 2.0]), untyped.zeros(2))


def test_nothing_to_write_into_is_fine() -> None:
    t = tensor([1.2, 2.0])
    assert untyped.nansum(t, 0, None, None) == untyped.sum(t, out=None)
    assert untyped.round(t, 0, None).data.tolist() == [1.0, 2.0]
    assert tnp.floor(t, None).data.tolist() == untyped.floor(t, out=None).data.tolist()
