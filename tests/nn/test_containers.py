"""Lists and dicts of modules: what they find, under which names, after which changes."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from telegrad import nn


def names(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters()]


def test_a_list_is_a_list() -> None:
    layers = nn.ModuleList(nn.Linear(k + 1, 1, bias=False) for k in range(3))
    first, second, third = layers
    assert names(layers) == ["0.weight", "1.weight", "2.weight"]
    assert (len(layers), layers[0], layers[-1]) == (3, first, third)
    assert list(layers[1:]) == [second, third]
    assert isinstance(layers[1:], nn.ModuleList)
    assert second in layers
    assert nn.ReLU() not in layers
    relu = nn.ReLU()
    layers.insert(0, relu)
    assert names(layers) == ["1.weight", "2.weight", "3.weight"]
    del layers[1:3]
    assert list(layers) == [relu, third]
    layers[0] = first
    assert names(layers.append(second)) == ["0.weight", "1.weight", "2.weight"]
    assert names(layers.extend([nn.Linear(1, 1)]))[-1] == "3.bias"
    with pytest.raises(TypeError, match="item 4 must be a Module, not int"):
        layers.append(3)  # type: ignore[arg-type]
    assert len(layers) == 4


def test_a_sequence_is_made_cut_and_gone_on_with() -> None:
    layers = nn.Sequential({"in": nn.Linear(2, 3), "out": nn.Linear(3, 1, bias=False)})
    assert names(layers) == ["in.weight", "in.bias", "out.weight"]
    rest = layers[1:].append(nn.Identity())
    assert isinstance(rest, nn.Sequential)
    assert names(rest) == ["0.weight"]
    assert next(iter(rest)) is layers[-1]
    x = np.ones((4, 3), np.float32)
    np.testing.assert_array_equal(rest(x).data, layers[1](x).data)
    with pytest.raises(TypeError, match="'1' must be a Module, not function"):
        nn.Sequential(nn.Linear(2, 3), nn.functional.relu)  # type: ignore[arg-type]


def test_a_dict_is_a_dict() -> None:
    heads = nn.ModuleDict({"a": nn.Linear(1, 1, bias=False), "keys": nn.Linear(1, 2, bias=False)})
    assert names(heads) == ["a.weight", "keys.weight"]
    assert list(heads) == list(heads.keys()) == ["a", "keys"]
    assert [name for name, _ in heads.items()] == ["a", "keys"]
    assert len(list(heads.values())) == len(heads) == 2
    assert heads.pop("a") not in heads.values()
    heads["b"] = nn.ReLU()
    assert "b" in heads
    assert "a" not in heads
    del heads["keys"]
    assert list(heads) == ["b"]
    with pytest.raises(ValueError, match=r"without a dot, not 'a\.b'"):
        heads["a.b"] = nn.ReLU()
    with pytest.raises(TypeError, match="'c' must be a Module, not int"):
        heads["c"] = 3  # type: ignore[assignment]
    with pytest.raises(KeyError):
        heads["a"]


def test_a_list_of_parameters() -> None:
    own = nn.Parameter(np.ones(2))
    found = nn.ParameterList([own, np.zeros(3)])
    assert names(found.append(np.ones(1))) == ["0", "1", "2"]
    assert found[0] is own
    assert [p.shape for p in found] == [(2,), (3,), (1,)]
    assert len(found) == 3


def test_a_module_that_has_them() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)])
            self.heads = nn.ModuleDict({"left": nn.Linear(1, 1)})
            self.scales = nn.ParameterList([np.ones(1)])

    net = Net()
    assert names(net) == [
        "layers.0.weight",
        "layers.0.bias",
        "layers.1.weight",
        "layers.1.bias",
        "heads.left.weight",
        "heads.left.bias",
        "scales.0",
    ]
    net.eval()
    assert not net.layers[1].training
    other = copy.deepcopy(net)
    assert names(other) == names(net)
    assert other.layers[0] is not net.layers[0]
    other.load_state_dict(net.state_dict())
