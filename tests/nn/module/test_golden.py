"""Modules as torch's: a state_dict of torch's in, its outputs, gradients and buffers out.

scripts/make_golden.py says what torch finds; tests/golden/store.py, how to read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import telegrad as tg
from telegrad import nn
from telegrad.autograd import RowSparse, Tensor
from tests.golden.store import HERE, close, direction, load, replace
from tests.gpu.comparison import host, of

MODULES = load(HERE / "modules.json")


def titled(entry: dict[str, Any]) -> str:
    options = [f"{key}={value}" for key, value in (entry["options"] | entry["named"]).items()]
    return "-".join([entry["class"], *(x for x in options if len(x) < 30)])


def on(xp: Any, tree: Any) -> Any:
    """The arrays of a tree on a library's device."""
    if isinstance(tree, dict):
        return {name: on(xp, part) for name, part in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(on(xp, part) for part in tree)
    return xp.asarray(tree) if isinstance(tree, np.ndarray) else tree


def made(xp: Any, entry: dict[str, Any]) -> nn.Module:
    """The module with torch's state, on a library's device."""
    options = dict(entry["options"])
    if entry["state"] and not entry["class"].endswith("Loss"):
        options["dtype"] = np.float64
    module: nn.Module = getattr(nn, entry["class"])(*entry["args"], **options)
    module.load_state_dict(entry["state"])
    return module if xp is np else module.to("cuda")


def flattened(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, tuple):
        for part in tree:
            yield from flattened(part)
    elif tree is not None:
        yield tree


def dense(gradient: Any) -> Any:
    """The array of a gradient, which may be of some rows alone."""
    array: Any = gradient.to_dense() if isinstance(gradient, RowSparse) else gradient
    return array.data if isinstance(array, Tensor) else array


def agrees(xp: Any, found: Any, expected: Any) -> bool:
    """Tells whether an array is of the library and has torch's numbers."""
    return of(xp, found) and close(host(found), expected)


def check_alike(xp: Any, found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert agrees(xp, found[name], array), name


def check_second(
    xp: Any, total: Tensor, leaves: list[Tensor], places: list[Tensor], expected: list[Any]
) -> None:
    """Gradients, at the inputs, of a sum of all gradients; those that torch has."""
    if not expected:
        return
    found = tg.grad(total, places, create_graph=True, allow_unused=True)
    along = sum((g * xp.asarray(direction(g.shape))).sum() for g in found if g is not None)
    assert isinstance(along, Tensor)
    again: Any = [None] * len(leaves)
    if along.requires_grad:
        again = tg.grad(along, leaves, allow_unused=True)
    for g, array in zip(again, expected, strict=True):
        assert agrees(xp, xp.zeros(array.shape) if g is None else g, array)


@pytest.mark.parametrize("entry", MODULES, ids=titled)
def test_a_module_agrees_with_torch(xp: Any, entry: dict[str, Any]) -> None:
    module = made(xp, entry)
    shapes = {name: array.shape for name, array in module.state_dict().items()}
    assert shapes == {name: array.shape for name, array in entry["state"].items()}
    for call in entry["calls"]:
        module.train(call["mode"] == "train")
        module.zero_grad()
        inputs = [
            tg.tensor(xp.asarray(a), requires_grad=k < call["free"] and a.dtype.kind == "f")
            for k, a in enumerate(call["inputs"])
        ]
        given = on(xp, replace(call["call"], inputs))
        outputs = [*flattened(module(*given, **on(xp, entry["named"])))]
        for y, expected in zip(outputs, call["outputs"], strict=True):
            assert agrees(xp, y, expected)
        weights = on(xp, call["weights"])
        total = sum((y * w).sum() for y, w in zip(outputs, weights, strict=True))
        assert isinstance(total, Tensor)
        places = [x for x in inputs if x.requires_grad]
        total.backward(retain_graph=True)
        check_second(xp, total, places, [*places, *module.parameters()], call["second"])
        for x, expected in zip(places, call["gradients"], strict=True):
            assert x.grad is not None
            assert agrees(xp, x.grad, expected)
        gradients = {name: dense(p.grad) for name, p in module.named_parameters()}
        check_alike(xp, gradients, call["parameters"])
        check_alike(xp, {name: x.data for name, x in module.named_buffers()}, call["buffers"])
