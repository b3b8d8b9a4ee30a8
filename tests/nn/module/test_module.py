"""Modules: what they find, keep and refuse."""

from __future__ import annotations

import copy
import threading
from typing import Any

import numpy as np
import pytest

from telegrad import nn, tensor
from telegrad.errors import AutogradError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.scale = nn.Parameter(np.ones(1, np.float32))
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(4, 2, bias=False))
        self.register_buffer("mean", tensor([0.5]))
        self.plain = tensor([1.0])

    def forward(self, x: Any) -> Any:
        return self.rest(self.first(x)) * self.scale


def test_names() -> None:
    net = Net()
    assert [name for name, _ in net.named_parameters()] == [
        "scale",
        "first.weight",
        "first.bias",
        "rest.1.weight",
    ]
    assert [name for name, _ in net.named_buffers()] == ["mean"]
    assert [name for name, _ in net.named_children()] == ["first", "rest"]
    assert len(list(net.modules())) == 5
    assert len(list(net.parameters())) == 4
    assert len(list(net.buffers())) == 1
    assert isinstance(net.rest[1], nn.Linear)
    assert len(net.rest) == 2


def test_a_shared_parameter_is_found_once() -> None:
    net = Net()
    net.again = net.first
    net.tied = net.first.weight
    assert len(list(net.parameters())) == 4


def test_attributes_may_be_replaced_and_deleted() -> None:
    net = Net()
    net.scale = None  # type: ignore[assignment]
    del net.rest
    assert [name for name, _ in net.named_parameters()] == ["first.weight", "first.bias"]
    net.mean = tensor([0.25])
    assert net.state_dict()["mean"].tolist() == [0.25]


def test_a_name_has_one_meaning() -> None:
    """A parameter replaced by a buffer was still trained, and one in a buffer's place was not."""
    net = Net()
    net.register_buffer("scale", tensor([2.0]))
    net.mean = nn.Parameter([1.0])
    net.add_module("plain", nn.ReLU())
    net.plain = nn.Parameter([1.0])
    net.add_module("plain", nn.Linear(1, 1))
    own = [name for name, _ in net.named_parameters() if "." not in name]
    assert own == ["mean"]
    assert [name for name, _ in net.named_buffers()] == ["scale"]
    assert isinstance(net.plain, nn.Linear)


def test_a_parameter_is_not_lost_to_an_assignment() -> None:
    """`layer.weight = array` made a layer that computes with it and trains nothing."""
    net = Net()
    for value in (np.zeros((4, 3)), net.first.weight * 2, 1.0):
        with pytest.raises(TypeError, match=r"assign a Parameter or None, or its array to weight"):
            net.first.weight = value  # type: ignore[assignment]
    with pytest.raises(TypeError, match="'mean' is a buffer and cannot become a float"):
        net.mean = 1.0
    with pytest.raises(TypeError, match="buffer 'other' must be a Tensor, not ndarray"):
        net.register_buffer("other", np.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'other' must be a Module, not type"):
        net.add_module("other", nn.ReLU)  # type: ignore[arg-type]
    assert [name for name, _ in net.named_parameters()][1] == "first.weight"
    assert list(net.state_dict()) == list(Net().state_dict())


def test_all_modules_and_parameters_at_once() -> None:
    net = Net()
    seen: list[nn.Module] = []
    assert net.apply(seen.append) is net
    assert seen == list(net.modules())
    assert [type(child) for child in net.children()] == [nn.Linear, nn.Sequential]
    assert net.requires_grad_(False) is net
    assert not any(p.requires_grad for p in net.parameters())
    assert not net(np.ones((5, 3), np.float32)).requires_grad
    net.requires_grad_()
    assert all(p.requires_grad for p in net.parameters())


def test_state_dict_is_a_snapshot_that_loads() -> None:
    first, second = Net(), Net()
    state = first.state_dict()
    for p in first.parameters():
        p.data += 1
    second.load_state_dict(state)
    for name, array in second.state_dict().items():
        np.testing.assert_array_equal(array, state[name])
    second.first.weight.data[...] = 0
    assert state["first.weight"].any()
    second.load_state_dict({"scale": [2.0]}, strict=False)
    assert second.scale.data.tolist() == [2.0]
    assert second.scale.dtype == np.float32


def test_a_deep_copy_is_independent() -> None:
    net = Net()
    other = copy.deepcopy(net)
    other.scale.data += 1
    assert net.scale.data.tolist() == [1.0]
    assert type(other.first.weight) is nn.Parameter
    assert len({id(p) for p in [*net.parameters(), *other.parameters()]}) == 8


def test_forgetting_super_init_says_so() -> None:
    class Bad(nn.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(1, 1)

    with pytest.raises(AttributeError, match=r"must call super\(\).__init__\(\)"):
        Bad()
    with pytest.raises(NotImplementedError, match="Module has no forward"):
        nn.Module()(1)


def test_linear_is_checked() -> None:
    assert np.abs(nn.Linear(3, 20).weight.data).max() <= 1 / np.sqrt(3)
    with pytest.raises(ValueError, match="positive lengths"):
        nn.Linear(0, 1)
    with pytest.raises(ValueError, match="floating-point, not int64"):
        nn.Linear(1, 1, dtype=np.int64)
    with pytest.raises(ValueError, match=r"Linear\(3, 2\) needs an input of shape \(\.\.\., 3\)"):
        nn.Linear(3, 2)(np.ones((5, 4), np.float32))
    with pytest.raises(AutogradError, match="only floating-point"):
        nn.Parameter(np.arange(3))


def test_manual_seed_holds_in_every_thread() -> None:
    made: list[Any] = []

    def make() -> None:
        made.append(nn.Linear(2, 2).weight.data)

    for _ in range(2):
        nn.manual_seed(7)
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
    nn.manual_seed(7)
    make()
    np.testing.assert_array_equal(made[0], made[1])
    np.testing.assert_array_equal(made[0], made[2])
    make()
    assert (made[3] != made[0]).any()
    nn.manual_seed(8)
    make()
    assert (made[4] != made[0]).any()


def test_repr() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    assert repr(model) == "Sequential(\n  (0): Linear(2, 3)\n  (1): ReLU()\n)"
    assert repr(nn.Parameter([1.0])) == "Parameter(tensor([1.], requires_grad=True))"
    layers: dict[str, nn.Module] = {
        "RNN(2, 3, nonlinearity='relu')": nn.RNN(2, 3, nonlinearity="relu"),
        "LSTM(2, 3, num_layers=2, bidirectional=True)": nn.LSTM(2, 3, 2, bidirectional=True),
        "GRU(2, 3, bias=False, batch_first=True, dropout=0.5)": nn.GRU(
            2, 3, bias=False, batch_first=True, dropout=0.5
        ),
        "GRUCell(2, 3)": nn.GRUCell(2, 3),
        "Conv2d(1, 2, (3, 3), padding=1, bias=False)": nn.Conv2d(1, 2, 3, padding=1, bias=False),
        "Conv1d(4, 2, 3, stride=2, dilation=3, groups=2)": nn.Conv1d(
            4, 2, 3, stride=2, dilation=3, groups=2
        ),
    }
    assert list(layers) == [repr(layer) for layer in layers.values()]
