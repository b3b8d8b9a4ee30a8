"""Modules on a GPU: what moves with them, where states are loaded and numbers drawn.

What modules compute there tests/nn/module/test_golden.py checks; here is what its table lacks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import telegrad as tg
from telegrad import checkpoint, nn
from telegrad.autograd import Tensor
from telegrad.nn import functional as F
from telegrad.nn import init
from tests.gpu.comparison import close, host, normal, on_gpu

RNG = np.random.default_rng
D = np.float64
ROWS, IMAGES = normal(1, 5, 6), normal(0, 2, 4, 6, 5)
LABELS = np.array([0, 1, 5, 2, 0])

LOSSES: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "ignored": (lambda x, t: F.cross_entropy(x, t, ignore_index=5), ROWS, LABELS),
    "smoothed": (
        lambda x, t: F.cross_entropy(x, t, ignore_index=5, label_smoothing=0.1),
        ROWS,
        LABELS,
    ),
    "of images": (
        lambda x, t: F.cross_entropy(x, t, [1.0, 2.0, 3.0, 4.0]),  # type: ignore[arg-type]
        IMAGES,
        np.arange(60).reshape(2, 6, 5) % 4,
    ),
}


class Scaled(nn.Module):
    """A module with a buffer."""

    scale: tg.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(3, 2, rng=RNG(0))
        self.register_buffer("scale", tg.tensor(np.float32(2.0)))

    def forward(self, x: Any) -> Any:
        return self.inside(x) * self.scale


def test_losses(cupy: Any, subtests: pytest.Subtests) -> None:
    for name, (function, x, target) in LOSSES.items():
        with subtests.test(name):
            leaves = [Tensor(x, requires_grad=True), Tensor(cupy.asarray(x), requires_grad=True)]
            expected, found = (
                function(leaf, wanted)
                for leaf, wanted in zip(leaves, (target, cupy.asarray(target)), strict=True)
            )
            close(found, expected)
            expected.backward()
            found.backward()
            close(leaves[1].grad, leaves[0].grad)


def test_a_module_moves(cupy: Any) -> None:
    model = Scaled()
    weight, array = model.inside.weight, model.inside.weight.data
    x = normal(0, 5, 3, dtype=np.float32)
    expected = model(x)
    expected.sum().backward()
    assert model.to("cuda") is model
    assert model.inside.weight is weight
    assert all(map(on_gpu, [*model.parameters(), *model.buffers()]))
    assert weight.grad is not None
    assert on_gpu(weight.grad)
    close(model(cupy.asarray(x)), expected)
    there = weight.data
    assert model.to("cuda:0").inside.weight.data is there
    np.testing.assert_array_equal(host(model.to("cpu").inside.weight), array)
    assert not any(map(on_gpu, [*model.parameters(), *model.buffers()]))
    with pytest.raises(ValueError, match="no such device"):
        model.to("gpu")


@pytest.mark.usefixtures("cupy")
def test_a_state_is_loaded_where_the_module_is() -> None:
    here, there = Scaled(), Scaled().to("cuda")
    for parameter in here.parameters():
        parameter.data = parameter.data + 1.0
    there.load_state_dict(here.state_dict())
    for name, array in there.state_dict().items():
        close(array, here.state_dict()[name])
    here.load_state_dict(Scaled().to("cuda").state_dict())
    assert not any(map(on_gpu, here.state_dict().values()))


@pytest.mark.usefixtures("cupy")
def test_a_state_in_a_file(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    module = nn.GRU(3, 4).to("cuda")
    checkpoint.save_state_dict(module, tmp_path / "x")
    found = checkpoint.load_state_dict(tmp_path / "x")
    for name, array in module.state_dict().items():
        np.testing.assert_array_equal(found[name], host(array))


@pytest.mark.usefixtures("cupy")
def test_first_values_stay_where_the_parameter_is() -> None:
    here, there = nn.Linear(3, 2), nn.Linear(3, 2).to("cuda")
    for module in (here, there):
        init.orthogonal_(module.weight, rng=RNG(0))
    close(there.weight, here.weight)
