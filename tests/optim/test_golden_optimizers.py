"""Optimizers, schedulers and clipping as torch's: ten steps, thirty rates, norms.

scripts/make_golden.py says what torch finds; tests/golden/store.py, how to read it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import telegrad as tg
from telegrad import nn, optim
from telegrad.autograd import Tensor
from tests.golden.store import HERE, close, load
from tests.gpu.comparison import host, of

OPTIMIZERS = load(HERE / "optimizers.json")
SCHEDULES = load(HERE / "schedules.json")
CLIPPINGS = load(HERE / "clippings.json")
LAMBDAS: dict[str, Callable[[int], float]] = {"one over root": lambda t: 1.0 / (1.0 + t) ** 0.5}


def titled(entry: dict[str, Any]) -> str:
    options = [f"{key}={value}" for key, value in entry["options"].items()]
    return "-".join([entry["class"], *options, *["groups"] * entry.get("groups", False)])


def leaves(xp: Any, arrays: list[Any]) -> list[Tensor]:
    return [tg.tensor(xp.asarray(array), requires_grad=True) for array in arrays]


def agrees(xp: Any, found: Any, expected: Any) -> bool:
    """Tells whether an array is of the library and has torch's numbers."""
    return of(xp, found) and close(host(found), expected)


def made(entry: dict[str, Any], params: list[Tensor]) -> optim.Optimizer:
    given: Any = params
    if entry["groups"]:
        given = [{"params": params[:1], "lr": 0.25}, {"params": params[1:]}]
    found: optim.Optimizer = getattr(optim, entry["class"])(given, **entry["options"])
    return found


def step(
    xp: Any, optimizer: optim.Optimizer, entry: dict[str, Any], params: list[Tensor], t: int
) -> None:
    optimizer.apply({p: xp.asarray(g[t]) for p, g in zip(params, entry["gradients"], strict=True)})
    for p, expected in zip(params, entry["after"], strict=True):
        assert agrees(xp, p, expected[t]), t


@pytest.mark.parametrize("entry", OPTIMIZERS, ids=titled)
def test_ten_steps_of_two_optimizers_agree_with_torch(xp: Any, entry: dict[str, Any]) -> None:
    """The second one takes over the state of the first, and goes on."""
    params = leaves(xp, entry["start"])
    first = made(entry, params)
    for t in range(4):
        step(xp, first, entry, params, t)
    copies = leaves(xp, [p.data for p in params])
    second = made(entry, copies)
    second.load_state_dict(first.state_dict())
    state = second.state_dict()["state"].get(0, {})
    assert all(of(xp, array) for array in state.values() if hasattr(array, "shape"))
    for t in range(4, 10):
        step(xp, second, entry, copies, t)
    state = second.state_dict()["state"].get(0, {})
    for name, expected in entry["state"].items():
        assert close(host(state[name]), expected), name


def scheduled(optimizer: optim.Optimizer, name: str, args: list[Any], options: Any) -> Any:
    if name == "LambdaLR":
        args = [LAMBDAS[args[0]]]
    if name == "SequentialLR":
        args = [[scheduled(optimizer, *each) for each in args[0]], args[1]]
    return getattr(optim, name)(optimizer, *args, **options)


@pytest.mark.parametrize("entry", SCHEDULES, ids=titled)
def test_thirty_learning_rates_agree_with_torch(entry: dict[str, Any]) -> None:
    optimizer = optim.SGD([tg.tensor(np.zeros(2), requires_grad=True)], lr=0.5, momentum=0.75)
    scheduler = scheduled(optimizer, entry["class"], entry["args"], entry["options"])
    rates, momenta = [], []
    for t in range(30):
        rates.append(optimizer.param_groups[0]["lr"])
        momenta.append(optimizer.param_groups[0]["momentum"])
        scheduler.step(*[] if entry["metrics"] is None else [entry["metrics"][t]])
    assert close(rates, entry["rates"])
    assert close(momenta, entry["momenta"])


@pytest.mark.parametrize("entry", CLIPPINGS, ids=lambda e: f"{e['limit']}-{e['order']}")
def test_clipped_gradients_agree_with_torch(xp: Any, entry: dict[str, Any]) -> None:
    params = leaves(xp, [np.zeros(g.shape) for g in entry["gradients"]])
    for p, g in zip(params, entry["gradients"], strict=True):
        p.grad = tg.tensor(xp.asarray(g))
    total = nn.utils.clip_grad_norm_(params, entry["limit"], norm_type=entry["order"])
    assert close(host(total), entry["total"])
    for p, expected in zip(params, entry["clipped"], strict=True):
        assert p.grad is not None
        assert agrees(xp, p.grad, expected)
