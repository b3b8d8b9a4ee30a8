"""Recurrent layers, attention, embeddings and optimizers on arrays of a GPU, as in host memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import telegrad as tg
from telegrad import checkpoint, nn, optim
from tests.gpu.comparison import close, host, normal, on_gpu

MODULES: list[tuple[Any, Any]] = [
    (lambda: nn.RNN(3, 4, 2, dtype=np.float64), lambda m, x: m(x)[0]),
    (lambda: nn.GRU(3, 4, bidirectional=True, dtype=np.float64), lambda m, x: m(x)[0]),
    (lambda: nn.LSTM(3, 4, batch_first=True, dtype=np.float64), lambda m, x: m(x)[0]),
    (lambda: nn.LSTMCell(3, 4, dtype=np.float64), lambda m, x: m(x[0])[0]),
    (
        lambda: nn.MultiheadAttention(3, 3, dtype=np.float64),
        lambda m, x: m(x, x, x, need_weights=False, is_causal=True)[0],
    ),
    (lambda: nn.MultiheadAttention(3, 1, dtype=np.float64), lambda m, x: m(x, x, x)[0]),
    (
        lambda: nn.Embedding(5, 3, padding_idx=1, dtype=np.float64),
        lambda m, x: m([[1, 2], [2, 4]]),
    ),
]


@pytest.mark.parametrize(("make", "call"), MODULES)
def test_modules_are_those_in_host_memory(xp: Any, make: Any, call: Any) -> None:
    here, there = make(), make()
    there.load_state_dict(here.state_dict())
    there.to("cuda")
    x = normal(0, 5, 2, 3, dtype=np.float64)
    for _ in range(2):
        found = call(there, tg.tensor(xp.asarray(x)))
        expected = call(here, tg.tensor(x))
        assert on_gpu(found)
        close(found, expected)
        (found * found).sum().backward()
        (expected * expected).sum().backward()
    for one, other in zip(there.parameters(), here.parameters(), strict=True):
        assert on_gpu(one.grad)
        close(one.grad, other.grad)


@pytest.mark.parametrize("make", [optim.SGD, optim.Adagrad, optim.RMSprop, optim.Adam, optim.AdamW])
def test_steps_are_those_in_host_memory(xp: Any, make: Any) -> None:
    start, gradient = normal(0, 4, 2, dtype=np.float64), normal(1, 4, 2, dtype=np.float64)
    here, there = (tg.tensor(a, requires_grad=True) for a in (start, xp.asarray(start)))
    optimizers = [make([p], lr=0.1) for p in (here, there)]
    for _ in range(3):
        for p, g, optimizer in zip(
            (here, there), (gradient, xp.asarray(gradient)), optimizers, strict=True
        ):
            p.grad = tg.tensor(g)
            nn.utils.clip_grad_norm_(p, 1.0)
            nn.utils.clip_grad_value_(p, 0.5)
            optimizer.step()
    close(there, here)
    optimizers[1].load_state_dict(optimizers[0].state_dict())
    state = optimizers[1].state_dict()["state"][0]
    assert all(on_gpu(a) for a in state.values() if hasattr(a, "shape"))


def test_a_state_in_a_file(xp: Any, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    module = nn.GRU(3, 4).to("cuda")
    checkpoint.save_state_dict(module, tmp_path / "x")
    found = checkpoint.load_state_dict(tmp_path / "x")
    for name, array in module.state_dict().items():
        np.testing.assert_array_equal(found[name], host(array))
