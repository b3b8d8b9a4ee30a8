"""Groups of parameters with options of their own, and the state of optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from telegrad import Tensor, optim, tensor


def leaf(*values: float) -> Any:
    return tensor(list(values), requires_grad=True)


def test_each_group_has_its_options() -> None:
    x, y, z = leaf(1.0), leaf(1.0), leaf(1.0)
    optimizer = optim.SGD([{"params": [x]}, {"params": y, "lr": 0.5}], lr=0.25)
    optimizer.add_param_group({"params": [z], "weight_decay": 1.0})
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.5, 0.25]
    assert optimizer.params == (x, y, z)
    one = np.ones(1)
    optimizer.apply({x: one, y: one, z: one})
    assert [p.item() for p in (x, y, z)] == [0.75, 0.5, 0.5]
    optimizer.param_groups[0]["lr"] = 0.5
    optimizer.apply({x: one})
    assert x.item() == 0.25


def test_groups_are_checked() -> None:
    x, y = leaf(1.0), leaf(1.0)
    cases: list[tuple[Any, type[Exception], str]] = [
        (
            [{"params": [x], "rate": 1.0}],
            ValueError,
            "SGD has no option rate; a group may have lr, ",
        ),
        ([{"params": [x], "lr": -1.0}], ValueError, "SGD needs lr >= 0"),
        ([{"params": []}], ValueError, "at least one parameter"),
        ([{"lr": 1.0}], ValueError, "at least one parameter"),
        ([{"params": [x]}, {"params": [y, x]}], ValueError, "given twice"),
        ([{"params": [x]}, {"params": [y * 2]}], ValueError, "parameter 1 is not a leaf"),
        ([x, {"params": [y]}], TypeError, "parameter 1 must be a Tensor, not dict"),
    ]
    for params, error, words in cases:
        with pytest.raises(error, match=words):
            optim.SGD(params, lr=0.1)


def test_the_layout_of_a_state_is_pytorchs() -> None:
    x, y = leaf(1.0), leaf(1.0, 2.0)
    optimizer = optim.Adam([{"params": [x], "lr": 0.5}, {"params": [y]}])
    optimizer.apply({y: np.ones(2)})
    state = optimizer.state_dict()
    assert [group["params"] for group in state["param_groups"]] == [[0], [1]]
    assert state["param_groups"][0]["lr"] == 0.5
    assert set(state["state"][1]) == {"step", "exp_avg", "exp_avg_sq"}
    assert list(state["state"]) == [1]
    before = state["state"][1]["exp_avg"].copy()
    optimizer.apply({y: np.ones(2)})
    np.testing.assert_array_equal(state["state"][1]["exp_avg"], before)


def test_a_state_is_loaded_in_the_parameters_dtype_and_is_a_copy() -> None:
    x = tensor([1.0, 2.0], dtype=np.float32, requires_grad=True)
    optimizer = optim.Adam([x])
    average = np.ones(2)
    state = {"step": np.array(3.0), "exp_avg": average, "exp_avg_sq": tensor([1.0, 1.0])}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: state}})
    average[:] = 7.0
    found = optimizer.state_dict()["state"][0]
    assert found["exp_avg"].tolist() == [1.0, 1.0]
    assert found["exp_avg_sq"].dtype == np.float32
    assert found["step"] == 3


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    x = leaf(1.0, 2.0)
    optimizer = optim.SGD([x], lr=0.5, momentum=0.5)
    optimizer.apply({x: np.ones(2)})
    state = optimizer.state_dict()
    group = dict(state["param_groups"][0], params=[0, 1], lr=9.0)
    del group["dampening"]
    bad = {"state": {0: {"momentum_buffer": np.ones(3)}, 5: {}}, "param_groups": [group]}
    with pytest.raises(ValueError, match="state does not fit SGD") as caught:
        optimizer.load_state_dict(bad)
    for words in (
        "its groups have [2] parameters, [1] needed",
        "group 0 lacks dampening",
        "momentum_buffer of parameter 0 has shape (3,), (2,) needed",
        "parameter 5 is none of 1",
    ):
        assert words in str(caught.value)
    out_of_range = dict(state["param_groups"][0], lr=-1.0)
    with pytest.raises(ValueError, match="SGD needs lr >= 0"):
        optimizer.load_state_dict({**state, "param_groups": [out_of_range]})
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.state_dict()["state"][0]["momentum_buffer"].tolist() == [1.0, 1.0]


def test_they_say_what_they_are() -> None:
    x, y = (tensor(np.ones(2), requires_grad=True) for _ in range(2))
    optimizer = optim.SGD([{"params": [x], "lr": 0.5}, {"params": [y]}], lr=0.125)
    rest = "momentum=0, dampening=0, weight_decay=0, nesterov=False"
    assert repr(optimizer) == (
        f"SGD(\n  1 parameters, lr=0.5, {rest}\n  1 parameters, lr=0.125, {rest}\n)"
    )
    scheduler = optim.ExponentialLR(optimizer, 0.5)
    scheduler.step()
    assert repr(scheduler) == "ExponentialLR(last_epoch=1, lr=[0.25, 0.0625])"
    x.requires_grad_(False)
    with pytest.raises(ValueError, match=r"1 is not a leaf .* needs no gradient; pass \[p "):
        optim.SGD([y, x])


# -- groups that are edited in place ---------------------------------------------------------------


def lrs(optimizer: optim.Optimizer, *parameters: Tensor) -> list[float]:
    """The step that each parameter makes for a gradient of 1; its rate, with SGD."""
    before = [p.item() for p in parameters]
    for p in parameters:
        p.grad = tensor(np.ones(1))
    optimizer.step()
    return [b - p.item() for b, p in zip(before, parameters, strict=True)]


def test_groups_that_were_edited_are_those_of_the_next_step() -> None:
    """They were those of the constructor, in silence, while schedulers set the others."""
    x, y, z = (leaf(1.0) for _ in range(3))
    optimizer = optim.SGD([x], lr=0.25)
    optimizer.param_groups[0] = {**optimizer.param_groups[0], "lr": 0.5}
    assert lrs(optimizer, x) == [0.5]
    optimizer.param_groups[0]["params"].append(y)
    assert lrs(optimizer, x, y, z) == [0.5, 0.5, 0.0]
    optimizer.param_groups.append({"params": [z]})
    assert lrs(optimizer, x, y, z) == [0.5, 0.5, 0.25]
    assert optimizer.param_groups[1]["momentum"] == 0.0  # from the defaults
    optimizer.param_groups[0]["params"] = [y]
    assert lrs(optimizer, x, y, z) == [0.0, 0.5, 0.25]
    del optimizer.param_groups[0]
    assert lrs(optimizer, x, y, z) == [0.0, 0.0, 0.25]
    assert optimizer.params == (z,)
    optimizer.zero_grad()
    assert [p.grad is None for p in (x, y, z)] == [False, False, True]


def test_the_state_of_a_parameter_moves_to_its_new_group() -> None:
    x, y = leaf(1.0), leaf(1.0)
    optimizer = optim.SGD([x, y], lr=0.5, momentum=0.5)
    optimizer.apply({x: np.ones(1), y: np.ones(1)})
    first = optimizer.param_groups[0]
    optimizer.param_groups.insert(0, {**first, "params": [y], "lr": 1.0})
    first["params"] = [x]
    assert [group["params"] for group in optimizer.state_dict()["param_groups"]] == [[0], [1]]
    optimizer.apply({x: np.ones(1), y: np.ones(1)})
    assert (x.item(), y.item()) == (1 - 0.5 - 0.75, 1 - 0.5 - 1.5)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda groups, x: groups[0]["params"].append(x), "a parameter is given twice"),
        (lambda groups, x: groups[0]["params"].append(x * 2), "not a leaf that needs a gradient"),
        (lambda groups, x: groups[0]["params"].append(3), "parameter 1 must be a Tensor"),
        (lambda groups, x: groups[0]["params"].clear(), "at least one parameter"),
        (lambda groups, x: groups[0].pop("params"), "at least one parameter"),
        (lambda groups, x: groups.append(3), "a group is a dict with 'params', not 3"),
        (lambda groups, x: groups.append({"params": [leaf(1.0)], "lr": -1}), "needs lr >= 0"),
        (lambda groups, x: groups.append({"params": [leaf(1.0)], "rate": 1}), "no option rate"),
    ],
)
def test_an_edit_that_is_no_group_is_refused_before_any_step(
    edit: Callable[[Any, Any], Any], words: str
) -> None:
    x = leaf(1.0)
    optimizer = optim.SGD([x], lr=0.25)
    edit(optimizer.param_groups, x)
    for act in (lambda: optimizer.apply({x: np.ones(1)}), optimizer.state_dict):
        with pytest.raises((TypeError, ValueError), match=words):
            act()
    assert x.item() == 1.0


def test_a_parameter_that_was_frozen_stays_in_its_group() -> None:
    x, y = leaf(1.0), leaf(1.0)
    optimizer = optim.SGD([x], lr=0.25)
    x.requires_grad_(False)
    optimizer.param_groups[0]["params"].append(y)
    optimizer.apply({y: np.ones(1)})
    assert (x.item(), y.item()) == (1.0, 0.75)


STATE: dict[str, Any] = {"state": {0: {"momentum_buffer": np.ones(1)}}, "param_groups": []}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"state": 5}, "it lacks param_groups; state is 5"),
        ({}, "it lacks param_groups; it lacks state"),
        ({"state": {}, "param_groups": 3}, "param_groups is 3"),
        ({"state": {}, "param_groups": [3]}, r"param_groups is \[3\]"),
        ({"state": {}, "param_groups": [{"lr": 1.0}]}, "param_groups is"),
        ({"state": {}, "param_groups": [{"params": 0}]}, "param_groups is"),
        ({"state": {0: 5}, "param_groups": []}, "state is {0: 5}"),
        ({**STATE, "state": {0: {"momentum_buffer": "much"}}}, "of parameter 0 is 'much'"),
        ({**STATE, "state": {0: {"momentum_buffer": None}}}, "of parameter 0 is None"),
        ({**STATE, "state": {0: {"momentum_buffer": [[1], 2]}}}, "of parameter 0 is"),
        ({**STATE, "param_groups": {"lr": "fast"}}, "SGD needs lr >= 0, .* not lr=fast"),
    ],
)
def test_a_state_of_something_else_is_a_value_error(state: dict[str, Any], words: str) -> None:
    x = leaf(1.0)
    optimizer = optim.SGD([x], lr=0.25, momentum=0.5)
    groups = state.get("param_groups")
    if "momentum_buffer" in str(state) or isinstance(groups, dict):  # the rest of it fits
        group = {**optimizer.state_dict()["param_groups"][0], **(groups or {})}
        state = {**state, "param_groups": [group]}
    with pytest.raises(ValueError, match=words):
        optimizer.load_state_dict(state)
    assert optimizer.state_dict()["state"] == {}
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_a_state_that_is_no_dict_is_a_type_error() -> None:
    optimizer = optim.SGD([leaf(1.0)], lr=0.25)
    scheduler = optim.StepLR(optimizer, 1)
    plateau = optim.ReduceLROnPlateau(optimizer)
    for loads in (optimizer, scheduler, plateau, optim.LossScale()):
        with pytest.raises(TypeError, match="loads the dict of a state_dict"):
            loads.load_state_dict(5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="it lacks"):
            loads.load_state_dict({})
