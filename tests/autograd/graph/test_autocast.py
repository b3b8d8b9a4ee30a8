"""Autocast: which dtype each operation takes, that numbers stay close, and where it holds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

import numpy as np
import pytest

import telegrad as tg
from telegrad import dist_autograd, nn, optim, rpc, tensor
from telegrad.arrays import namespace
from telegrad.autograd import Function, Operation, Tensor
from telegrad.autograd.extend import find
from telegrad.autograd.graph.autocast import PRECISION, casting_dtype
from telegrad.autograd.ops import layers
from telegrad.autograd.seams import cast_as
from telegrad.testing import Cluster
from tests.gpu.comparison import host, normal

F = nn.functional
SHORT = ["float16", "bfloat16"]
every_dtype = pytest.mark.parametrize("dtype", SHORT)


def array(seed: int, *shape: int) -> Any:
    return normal(seed, *shape).astype(np.float32)


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


X = array(0, 5, 6)
IMAGES = array(1, 2, 3, 6, 6)
STEPS = array(2, 4, 3, 6)

# Makes a module, its input, and whether it computes in the short dtype.
MODULES: dict[str, tuple[Callable[[], nn.Module], Any, bool]] = {
    "Linear": (lambda: nn.Linear(6, 4, rng=rng()), X, True),
    "Conv1d": (lambda: nn.Conv1d(3, 4, 3, padding=1, rng=rng()), array(3, 2, 3, 7), True),
    "Conv2d": (lambda: nn.Conv2d(3, 4, 3, padding=1, rng=rng()), IMAGES, True),
    "RNN": (lambda: nn.RNN(6, 5, rng=rng()), STEPS, True),
    "GRU": (lambda: nn.GRU(6, 5, bidirectional=True, rng=rng()), STEPS, True),
    "LSTM": (lambda: nn.LSTM(6, 5, 2, rng=rng()), STEPS, True),
    "LSTMCell": (lambda: nn.LSTMCell(6, 5, rng=rng()), X, True),
    "LayerNorm": (lambda: nn.LayerNorm(6), X, False),
    "RMSNorm": (lambda: nn.RMSNorm(6), X, False),
    "GroupNorm": (lambda: nn.GroupNorm(3, 3), IMAGES, False),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(6), X, False),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), IMAGES, False),
    "Softmax": (lambda: nn.Softmax(), X, False),
    "LogSoftmax": (lambda: nn.LogSoftmax(), X, False),
    "Softplus": (lambda: nn.Softplus(), X, False),
}


def names_in(expected: str) -> np.dtype[Any]:
    return np.dtype(expected) if expected != "bfloat16" else np.dtype(_bfloat16())


def _bfloat16() -> Any:
    with nn.autocast("bfloat16"):  # imports ml_dtypes
        return casting_dtype()


def rounding(dtype: str) -> float:
    return 1e-2 if dtype == "float16" else 6e-2


def outputs(module: nn.Module, x: Any, other: Any = None) -> Any:
    found = module(x) if other is None else module(x, other, other)
    return found[0] if isinstance(found, tuple) else found


def gradients_of(module: nn.Module, y: Tensor, x: Tensor) -> list[Any]:
    weights = namespace(y.data).asarray(
        array(5, *y.shape)
    )  # the squares of a norm have a fixed sum
    (y * y * weights).sum().backward()
    found = [x.grad, *(p.grad for p in module.parameters())]
    return [g for g in found if g is not None]


@pytest.mark.few(15)
@every_dtype
@pytest.mark.parametrize("name", MODULES)
def test_a_module(xp: Any, name: str, dtype: str) -> None:
    make, given, short = MODULES[name]
    module, plain = make(), make()
    if xp is not np:
        if dtype == "bfloat16":
            pytest.skip("the stand-in is of NumPy's dtypes")
        module.to("cuda")
    given = given.astype(names_in(dtype)) if not short else given
    x = tensor(xp.asarray(given), requires_grad=True)
    with nn.autocast(dtype):
        y = outputs(module, x)
    if dtype == "bfloat16" and isinstance(module, (nn.RNN, nn.GRU, nn.LSTM, nn.LSTMCell)):
        short = False  # NumPy multiplies matrices of bfloat16 in float32
    assert y.dtype == (names_in(dtype) if short else np.float32)
    own = tensor(given.astype(np.float32), requires_grad=True)
    expected = outputs(plain, own)
    close = rounding(dtype)
    np.testing.assert_allclose(
        host(y.data).astype(np.float32), expected.data, rtol=close, atol=close
    )
    found = gradients_of(module, y.astype(np.float32), x)
    wanted = gradients_of(plain, expected, own)
    assert [g.dtype for g in found] == [x.dtype, *(p.dtype for p in module.parameters())]
    for g, w in zip(found, wanted, strict=True):
        scale = float(np.abs(w.data).max())
        np.testing.assert_allclose(
            host(g.data).astype(np.float32), w.data, rtol=close, atol=3 * close * scale
        )


@every_dtype
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weights", [False, True])
def test_attention(dtype: str, masked: bool, weights: bool) -> None:
    module = nn.MultiheadAttention(6, 2, rng=rng())
    mask = np.triu(np.ones((4, 4), bool), 1) if masked else None
    x = tensor(STEPS, requires_grad=True)
    with nn.autocast(dtype):
        y, _ = module(x, x, x, attn_mask=mask, need_weights=weights)
        own = F.scaled_dot_product_attention(X[None], X[None], tensor(X[None]))
    assert y.dtype == own.dtype == names_in(dtype)
    plain, _ = module(STEPS, STEPS, STEPS, attn_mask=mask, need_weights=weights)
    close = rounding(dtype)
    np.testing.assert_allclose(y.data.astype(np.float32), plain.data, rtol=close, atol=close)
    y.astype(np.float32).sum().backward()
    assert {p.grad.dtype for p in module.parameters() if p.grad is not None} == {
        np.dtype(np.float32)
    }


LABELS = np.array([0, 1, 2, 3, 5])
P = 1 / (1 + np.exp(-X))
LOSSES: dict[str, tuple[Callable[..., Tensor], Any, Any]] = {
    "mse": (F.mse_loss, X, X[::-1]),
    "l1": (F.l1_loss, X, X[::-1]),
    "huber": (F.huber_loss, X, X[::-1]),
    "smooth l1": (F.smooth_l1_loss, X, X[::-1]),
    "bce": (F.binary_cross_entropy, P, P[::-1]),
    "bce with logits": (F.binary_cross_entropy_with_logits, X, P),
    "kl": (F.kl_div, X, P),
    "nll": (F.nll_loss, X, LABELS),
    "cross entropy": (F.cross_entropy, X, LABELS),
    "of probabilities": (F.cross_entropy, X, P),
    "weighted": (lambda x, t: F.cross_entropy(x, t, array(4, 6) ** 2), X, LABELS),
    "smoothed": (lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), X, LABELS),
}


@every_dtype
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_in_float32(name: str, dtype: str) -> None:
    loss_of, x, target = LOSSES[name]
    short = tensor(x.astype(names_in(dtype)), requires_grad=True)
    with nn.autocast(dtype):
        loss = loss_of(short, target)
    assert loss.dtype == np.float32
    expected = loss_of(tensor(short.data.astype(np.float32)), target)
    np.testing.assert_allclose(loss.item(), expected.item(), rtol=1e-5)
    loss.backward()
    assert short.grad is not None
    assert short.grad.dtype == short.dtype


@every_dtype
def test_products_are_short_and_sums_and_exponentials_are_not(dtype: str) -> None:
    x = tensor(X, requires_grad=True)
    with nn.autocast(dtype):
        y: Any = np.einsum("ij,kj->ik", x, x)
        z: Any = np.exp(y)
        assert casting_dtype() == names_in(dtype)
        dtypes = [
            np.asarray(a.data).dtype for a in (z, z.sum(), np.log(z), y**2, y + y, np.tanh(y))
        ]
    assert y.dtype == names_in(dtype) or dtype == "bfloat16"  # NumPy's products are in float32
    assert dtypes == [np.dtype(np.float32)] * 4 + [y.dtype] * 2
    z.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == np.float32


def test_float64_and_arrays_without_a_tensor_stay() -> None:
    with nn.autocast():
        assert (tensor(X.astype(float)) @ X.T.astype(float)).dtype == np.float64
        assert layers.linear(X, X, None).dtype == np.float32
        assert (np.matmul(X, X.T)).dtype == np.float32
        assert cast_as("attention", None, 3, np.arange(3))[2].dtype == np.int64


def test_every_name_in_the_table_is_an_operation() -> None:
    known = {x.name for x in vars(layers).values() if isinstance(x, Operation)}
    for name in PRECISION.keys() - known - {"attention", "recurrence", "loss", "einsum"}:
        function: Any = getattr(np, name, None) or getattr(np.linalg, name, None) or name
        replaced = find(function)
        if replaced is None:
            replaced = getattr(tg.autograd.ops, name)
        assert isinstance(replaced, Operation), name
        assert replaced.name == name


# -- casts of parameters ---------------------------------------------------------------------------


def casts(y: Any) -> int:
    """The nodes of casts below `y`."""
    seen, waiting = set(), [y.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [edge[0] for edge in node.edges if edge is not None]
    return sum(node.name == "astype" for node in seen)


def test_a_parameter_is_cast_once_as_long_as_its_values_stay() -> None:
    layer = nn.Linear(6, 6, bias=False, rng=rng())
    with nn.autocast():
        with nn.autocast("float16"):
            y = layer(layer(X))
        assert casts(y) == 1
        assert casts(y + layer(X)) == 1
        with tg.no_grad():
            layer(X)
        assert casts(layer(X) + y) == 1
        layer.weight.data = layer.weight.data * 2
        twice = layer(X)
        np.testing.assert_allclose(twice.data, X @ layer.weight.data.T, rtol=1e-2, atol=1e-2)
        assert casts(twice + y) == 2
        (y.sum() + twice.sum()).backward()
        (layer(X).sum()).backward()  # the cast is still there: it keeps nothing that was freed
    with nn.autocast():
        assert casts(layer(X) + y) == 2, "a new block casts again"
    assert layer.weight.grad is not None


def test_blocks_nest_and_end() -> None:
    layer = nn.Linear(6, 2, rng=rng())

    @nn.autocast("float16")
    def short() -> Any:
        return layer(X).dtype

    with nn.autocast():
        assert layer(X).dtype == np.float16
        with nn.autocast(enabled=False):
            assert layer(X).dtype == np.float32
            assert short() == np.float16
        with nn.autocast("bfloat16"):
            assert layer(X).dtype == names_in("bfloat16")
        with pytest.raises(ZeroDivisionError), nn.autocast("bfloat16"):
            _ = 1 / 0
        assert layer(X).dtype == np.float16
    assert layer(X).dtype == np.float32
    assert short() == np.float16


def test_other_threads_have_their_own() -> None:
    layer = nn.Linear(6, 2, rng=rng())
    found: list[Any] = []

    def run() -> None:
        found.append(layer(X).dtype)

    with nn.autocast():
        for target in (run, partial(copy_context().run, run)):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
    assert found == [np.float32, np.float16]


def test_wrong_dtypes_and_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("float32", "int16", np.float64):
        with pytest.raises(ValueError, match="autocast computes in 'float16' or 'bfloat16', not"):
            nn.autocast(wrong)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ImportError, match="needs the package ml_dtypes: pip install ml_dtypes"):
        nn.autocast("bfloat16")


# -- backward --------------------------------------------------------------------------------------


class Double(Function):
    seen: list[Any]

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        Double.seen.append((casting_dtype(), gradient.dtype))
        return gradient * 2


def test_a_backward_uses_the_dtypes_of_the_forward_wherever_it_runs() -> None:
    layer = nn.Linear(6, 6, rng=rng())
    found = []
    for inside in (False, True):
        Double.seen = []
        layer.zero_grad()
        with nn.autocast():
            loss = F.mse_loss(Double.apply(layer(X)), X)
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        assert Double.seen == [(None, np.float16)]
        assert layer.weight.grad is not None
        found.append(layer.weight.grad.data)
    np.testing.assert_array_equal(found[0], found[1])


def test_gradients_of_gradients() -> None:
    layer = nn.Linear(6, 6, rng=rng())
    x = tensor(X, requires_grad=True)
    with nn.autocast():
        loss = (np.tanh(layer(x)) ** 2).sum()
        (g,) = tg.grad(loss, [x], create_graph=True)
    assert g.dtype == np.float32
    (g * g).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == np.float32


@pytest.mark.parametrize("outer", [False, True])
def test_recomputing_keeps_it(outer: bool) -> None:
    def gradients(again: bool) -> list[Any]:
        model = nn.Sequential(
            nn.Linear(6, 6, rng=rng()), nn.LayerNorm(6), nn.Linear(6, 6, rng=rng())
        )
        x = tensor(X, requires_grad=True)
        with nn.autocast():
            first = model[0](x) if outer else x  # the cast of its weight is known before
            y = tg.recompute(lambda x: model(model(x)), first) if again else model(model(first))
            loss = F.mse_loss(y, X)
        loss.backward()
        assert y.dtype == np.float16
        return [p.grad.data for p in model.parameters() if p.grad is not None]

    for one, other in zip(gradients(False), gradients(True), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-3)


@pytest.mark.long
def test_training_in_a_short_dtype(xp: Any) -> None:
    model = nn.Sequential(nn.Linear(6, 16, rng=rng()), nn.GELU(), nn.Linear(16, 1, rng=rng()))
    if xp is not np:
        model.to("cuda")
    x, y = (tensor(xp.asarray(a)) for a in (X, X.sum(1, keepdims=True)))
    optimizer, scale = optim.Adam(model.parameters(), lr=0.02), optim.LossScale(2.0**20)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        with nn.autocast():
            loss = F.mse_loss(model(x), y)
        with np.errstate(over="ignore", invalid="ignore"):
            scale.scale(loss).backward()
            scale.step(optimizer)
        scale.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 20
    assert float(scale.value) < 2.0**20, "the first factors are too large for float16"


# -- workers ---------------------------------------------------------------------------------------

LAYER = nn.Linear(6, 2, rng=rng())


def there(x: Tensor) -> Tensor:
    assert casting_dtype() is None
    return LAYER(x)


def call_inside() -> tuple[Any, Any, Any]:
    x = tensor(X, requires_grad=True)
    with dist_autograd.context() as context_id:
        with nn.autocast():
            y = rpc.rpc_sync("worker1", there, (LAYER(x) @ np.ones((2, 6), np.float32),))
            loss = F.mse_loss(y, np.ones((5, 2)))
        dist_autograd.backward(context_id, [loss])
        return y.dtype, loss.dtype, dist_autograd.get_gradients(context_id)[x].dtype


def test_a_call_does_not_take_it_along() -> None:
    with Cluster(2) as cluster:
        assert cluster.call(0, call_inside) == (np.float32, np.float32, np.float32)
