"""Recurrent layers: their gradients, shapes and states; torch's numbers are in the golden tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad import grad, nn, tensor
from telegrad.autograd import gradcheck, ops
from telegrad.errors import AutogradError
from tests.autograd.finite_differences import check_second_along_a_line
from tests.nn.functional_call import as_function, close, normal

KINDS = {"rnn_tanh": 1, "rnn_relu": 1, "gru": 3, "lstm": 4}


def arguments(kind: str, steps: int, batch: int) -> tuple[Any, Any, list[Any]]:
    rng = np.random.default_rng(3)
    rows = 2 * KINDS[kind]
    states = rng.normal(size=(2, batch, 2))
    shapes: list[tuple[int, ...]] = [(rows, 3), (rows, 2), (rows,), (rows,)]
    return rng.normal(size=(steps, batch, 3)), states, [rng.normal(size=s) for s in shapes]


def run(kind: str, x: Any, states: Any, weights: Any, **options: Any) -> Any:
    count = 2 if kind == "lstm" else 1
    return ops.sequences.recurrence(kind, x, tuple(states[:count]), *weights, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_one_output_alone(kind: str) -> None:
    """The others then come as None."""
    x, states, weights = arguments(kind, 3, 2)
    leaves = [tensor(a, requires_grad=True) for a in (x, *weights)]
    for k in range(3 if kind == "lstm" else 2):
        assert gradcheck(lambda x, *w, k=k: run(kind, x, states, w)[k], leaves)


def test_what_needs_no_gradient_gets_none() -> None:
    x, states, weights = arguments("lstm", 3, 2)
    given = [tensor(x), *(tensor(w, requires_grad=True) for w in weights)]
    y, *_ = run("lstm", given[0], states, given[1:])
    y.sum().backward()
    assert [leaf.grad is None for leaf in given] == [True, False, False, False, False]


def test_a_cell_in_a_loop_has_second_derivatives() -> None:
    """Its state depends on the weights too: they are not counted twice."""
    layer = nn.GRUCell(1, 1, dtype=np.float64, rng=np.random.default_rng(0))
    x = tensor(normal(1, 1), requires_grad=True)

    def loop(x: Any) -> Any:
        h = None
        for _ in range(2):
            h = layer(x, h)
        return h

    call, parameters = as_function(layer, loop)
    leaves = [x, *parameters]
    assert gradcheck(call, leaves)
    check_second_along_a_line(call, leaves)
    recorded = grad(call(*leaves), leaves, create_graph=True)
    for found, expected in zip(recorded, grad(call(*leaves), leaves), strict=True):
        close(found, expected)


@pytest.mark.parametrize("make", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_a_cell_takes_a_batch_or_one_example(make: Any) -> None:
    layer = make(3, 2, dtype=np.float64)
    x, states = normal(4, 3), normal(2, 4, 2, seed=1)
    if make is nn.LSTMCell:
        found, one = layer(x, tuple(states)), layer(x[1], tuple(states[:, 1]))
    else:
        found, one = [layer(x, states[0])], [layer(x[1], states[0, 1])]
    for whole, single in zip(found, one, strict=True):
        close(single, whole.data[1])
    assert make(3, 2)(x.astype(np.float32))[0].dtype == np.float32


def test_dropout_is_between_layers_and_in_training() -> None:
    layer = nn.RNN(3, 8, 2, dropout=1.0, dtype=np.float64)
    x = normal(4, 2, 3)
    _, h = layer(x)
    second = nn.RNN(8, 8, dtype=np.float64)
    second.load_state_dict(
        {n: layer.state_dict()[n.replace("l0", "l1")] for n in second.state_shapes()}
    )
    alone = second(np.zeros((4, 2, 8)))[1].data[0]
    close(h[1], alone)
    assert h.data[0].any()
    layer.eval()
    assert not np.allclose(layer(x)[1].data[1], alone)


def test_an_output_changed_in_place_is_noticed() -> None:
    layer = nn.LSTM(3, 2)
    y, _ = layer(np.ones((3, 1, 3), np.float32))
    y.detach().__iadd__(1.0)
    with pytest.raises(AutogradError, match="changed in place"):
        y.sum().backward()


def test_messages() -> None:
    with pytest.raises(ValueError, match="positive lengths, not 0 and 2"):
        nn.LSTM(0, 2)
    with pytest.raises(ValueError, match="'tanh' or 'relu', not 'cube'"):
        nn.RNN(3, 2, nonlinearity="cube")
    with pytest.raises(ValueError, match="floating-point, not int64"):
        nn.GRUCell(3, 2, dtype=np.int64)
    with pytest.raises(ValueError, match="0 <= dropout <= 1"):
        nn.GRU(3, 2, dropout=2)
    with pytest.raises(ValueError, match=r"the last of length 3, not shape \(4, 1, 2\)"):
        nn.GRU(3, 2)(np.ones((4, 1, 2)))
    with pytest.raises(ValueError, match="without steps"):
        nn.GRU(3, 2)(np.ones((0, 1, 3)))
    with pytest.raises(ValueError, match=r"needs 2 states of shape \(1, 5, 2\), not \[\(1, 5, 3\)"):
        nn.LSTM(3, 2)(np.ones((4, 5, 3)), (np.ones((1, 5, 3)), np.ones((1, 5, 2))))


def test_an_empty_batch() -> None:
    layer = nn.LSTM(3, 2, dtype=np.float64)
    y, _ = layer(np.ones((4, 0, 3)))
    assert y.shape == (4, 0, 2)
    found = grad(y.sum(), list(layer.parameters()))
    assert all(not g.data.any() for g in found)
