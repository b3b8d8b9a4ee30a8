"""Modules and optimizers on the GPU: the same numbers as in host memory, and digits learned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import telegrad as tg
from telegrad import nn, optim
from tests.gpu.comparison import close, host, normal, on_gpu

EPOCHS, BATCH, HELD_OUT = 10, 64, 360


def perceptron(*, dtype: Any = np.float64) -> nn.Sequential:
    rng = np.random.default_rng(1)
    return nn.Sequential(
        nn.Linear(64, 64, dtype=dtype, rng=rng), nn.ReLU(), nn.Linear(64, 10, dtype=dtype, rng=rng)
    )


class Scaled(nn.Module):
    """A module with a buffer."""

    scale: tg.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(3, 2, rng=np.random.default_rng(0))
        self.register_buffer("scale", tg.tensor(np.float32(2.0)))

    def forward(self, x: Any) -> Any:
        return self.inside(x) * self.scale


def test_a_module_moves(xp: Any) -> None:
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
    close(model(xp.asarray(x)), expected)
    there = weight.data
    assert model.to("cuda:0").inside.weight.data is there
    np.testing.assert_array_equal(host(model.to("cpu").inside.weight), array)
    assert not any(map(on_gpu, [*model.parameters(), *model.buffers()]))
    with pytest.raises(ValueError, match="no such device"):
        model.to("gpu")


def test_a_state_is_loaded_where_the_module_is(xp: Any) -> None:
    here, there = Scaled(), Scaled().to("cuda")
    for parameter in here.parameters():
        parameter.data = parameter.data + 1.0
    there.load_state_dict(here.state_dict())
    for name, array in there.state_dict().items():
        close(array, here.state_dict()[name])
    here.load_state_dict(Scaled().to("cuda").state_dict())
    assert not any(map(on_gpu, here.state_dict().values()))


@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "weight_decay": 0.01}]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_steps_are_those_in_host_memory(xp: Any, dtype: Any, options: Any) -> None:
    images = normal(0, 32, 64, dtype=dtype)
    labels = np.random.default_rng(1).integers(0, 10, 32)
    models = [perceptron(dtype=dtype), perceptron(dtype=dtype).to("cuda")]
    batches = [(images, labels), (xp.asarray(images), xp.asarray(labels))]
    for model, (x, y) in zip(models, batches, strict=True):
        optimizer = optim.SGD(model.parameters(), lr=0.05, **options)
        for _ in range(5):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    for here, there in zip(*(model.parameters() for model in models), strict=True):
        assert there.dtype == dtype
        close(there, here)


def test_an_optimizer_takes_gradients_of_its_device_only(xp: Any) -> None:
    parameters = [tg.tensor(xp.zeros(2), requires_grad=True) for _ in range(2)]
    optimizer = optim.SGD(parameters, lr=1.0)
    with pytest.raises(ValueError, match="a step of arrays on different devices"):
        optimizer.apply({parameters[0]: xp.ones(2), parameters[1]: np.ones(2)})
    assert host(parameters[0]).tolist() == [0.0, 0.0]  # none was stepped


def test_functional(xp: Any) -> None:
    logits = normal(0, 4, 10)
    for function in (nn.functional.softmax, nn.functional.log_softmax, nn.functional.relu):
        close(function(tg.tensor(xp.asarray(logits))), function(tg.tensor(logits)))
    labels = [1, 2, 3, 4]
    close(
        nn.functional.cross_entropy(xp.asarray(logits), labels),  # type: ignore[arg-type]
        nn.functional.cross_entropy(logits, np.array(labels)),
    )


def test_a_perceptron_learns_digits(xp: Any) -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    data = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = xp.asarray((data.data[order] / 16).astype(np.float32))
    labels = xp.asarray(data.target[order])
    train_images, train_labels = images[HELD_OUT:], labels[HELD_OUT:]

    model = perceptron(dtype=np.float32).to("cuda")
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rng = np.random.default_rng(1)
    for _ in range(EPOCHS):
        shuffled = xp.asarray(rng.permutation(len(train_labels)))
        for start in range(0, len(shuffled), BATCH):
            batch = shuffled[start : start + BATCH]
            loss = nn.functional.cross_entropy(model(train_images[batch]), train_labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert all(map(on_gpu, model.parameters()))

    with tg.no_grad():
        guesses = np.argmax(model(images[:HELD_OUT]), axis=1)
    assert float(np.mean(host(guesses) == host(labels[:HELD_OUT]))) >= 0.95
