"""Layers, activations and losses on the GPU against their twins in host memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from telegrad import nn
from telegrad.autograd import Tensor, grad
from telegrad.nn import functional as F
from telegrad.nn import init
from tests.gpu.comparison import close, host, moved, normal, on_gpu

RNG = np.random.default_rng
D = np.float64
IMAGES = normal(0, 2, 4, 6, 5)
ROWS = normal(1, 5, 6)
P = 1 / (1 + np.exp(-ROWS))
LABELS = np.array([0, 1, 5, 2, 0])

LAYERS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, 2, 1, groups=2, dtype=D, rng=RNG(0)), IMAGES),
    "conv2d 1 by 1": (lambda: nn.Conv2d(4, 3, 1, dtype=D, rng=RNG(0)), IMAGES),
    "conv1d": (lambda: nn.Conv1d(4, 3, 2, padding="same", dtype=D, rng=RNG(0)), IMAGES[..., 0]),
    "max pool": (lambda: nn.MaxPool2d(3, 2, 1), IMAGES),
    "max pool apart": (lambda: nn.MaxPool2d(2), IMAGES),
    "mean pool": (lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False), IMAGES),
    "parts": (lambda: nn.AdaptiveAvgPool2d((4, 1)), IMAGES),
    "all": (lambda: nn.AdaptiveAvgPool2d(1), IMAGES),
    "layer norm": (lambda: nn.LayerNorm(6, dtype=D), ROWS),
    "bare layer norm": (lambda: nn.LayerNorm(6, elementwise_affine=False), ROWS),
    "rms norm": (lambda: nn.RMSNorm(6, dtype=D), ROWS),
    "batch norm": (lambda: nn.BatchNorm2d(4, dtype=D), IMAGES),
    "batch norm, eval": (lambda: nn.BatchNorm2d(4, dtype=D).eval(), IMAGES),
    "flatten": (nn.Flatten, IMAGES),
    "softmax": (lambda: nn.Softmax(1), IMAGES),
    **{
        kind.__name__: (kind, ROWS)
        for kind in (
            nn.ELU, nn.GELU, nn.SELU, nn.Hardtanh, nn.LeakyReLU, nn.LogSigmoid, nn.LogSoftmax,
            nn.Mish, nn.ReLU, nn.ReLU6, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Tanh,
        )
    },
    "gelu by tanh": (lambda: nn.GELU("tanh"), ROWS),
}  # fmt: skip

LOSSES: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "mse": (F.mse_loss, ROWS, P),
    "l1": (F.l1_loss, ROWS, P),
    "huber": (F.huber_loss, ROWS, P),
    "bce": (F.binary_cross_entropy, P, P[::-1].copy()),
    "logits": (F.binary_cross_entropy_with_logits, ROWS, P),
    "kl": (F.kl_div, ROWS, P),
    "cross entropy": (F.cross_entropy, ROWS, LABELS),
    "nll": (F.nll_loss, ROWS, LABELS),
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
    "of probabilities": (F.cross_entropy, ROWS, P),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_that_in_host_memory(xp: Any, name: str) -> None:
    make, x = LAYERS[name]
    here, there = make(), make().to("cuda")
    leaves = [Tensor(x, requires_grad=True), Tensor(xp.asarray(x), requires_grad=True)]
    found = []
    for module, leaf in zip((here, there), leaves, strict=True):
        y = module(leaf)
        inputs = [leaf, *module.parameters()]
        first = grad((y * y * y).sum(), inputs, create_graph=True)
        second = grad((first[0] * first[0]).sum(), leaf, allow_unused=True)
        found.append([y, *first, *(g for g in second if g is not None), *module.buffers()])
    for expected, actual in zip(*found, strict=True):
        close(actual, expected)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_that_in_host_memory(xp: Any, name: str) -> None:
    function, x, target = LOSSES[name]
    leaves = [Tensor(x, requires_grad=True), Tensor(xp.asarray(x), requires_grad=True)]
    found = []
    for leaf, wanted in zip(leaves, (target, xp.asarray(target)), strict=True):
        y = function(leaf, wanted)
        y.backward()
        found.append([y, leaf.grad])
    for expected, actual in zip(*found, strict=True):
        close(actual, expected)


def test_dropout_draws_there(xp: Any) -> None:
    x = moved(xp, Tensor(np.ones((40, 25)), requires_grad=True))
    first = F.dropout(x, 0.25, rng=RNG(0))
    again = F.dropout(x, 0.25, rng=RNG(0))
    assert on_gpu(first)
    np.testing.assert_array_equal(host(first), host(again))
    assert set(np.unique(host(first)).tolist()) == {0.0, 1 / 0.75}
    assert (host(first) == 0).mean() == pytest.approx(0.25, abs=0.06)
    first.sum().backward()
    close(x.grad, host(first))


def test_first_values_stay_where_the_parameter_is(xp: Any) -> None:
    here, there = nn.Linear(3, 2), nn.Linear(3, 2).to("cuda")
    for module in (here, there):
        init.orthogonal_(module.weight, rng=RNG(0))
    close(there.weight, here.weight)
