"""Recurrent layers, for one step (cells) and for sequences, with PyTorch's parameters."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from telegrad.arrays import namespace
from telegrad.autograd import Tensor, ops
from telegrad.nn.dropout import dropout
from telegrad.nn.module import Module, drawn
from telegrad.types import DTypeLike

GATES = {"rnn_tanh": 1, "rnn_relu": 1, "gru": 3, "lstm": 4}


def _kind(nonlinearity: str) -> str:
    if nonlinearity not in ("tanh", "relu"):
        raise ValueError(f"nonlinearity is 'tanh' or 'relu', not {nonlinearity!r}")
    return f"rnn_{nonlinearity}"


class _Recurrent(Module):
    """The base of cells and sequences: parameters, drawn from ±1/sqrt(hidden_size), and checks."""

    _shown = "{input_size}, {hidden_size}"
    _usual: ClassVar = {"bias": True}
    kind: str
    states: ClassVar[int] = 1

    def __init__(self, input_size: int, hidden_size: int, *, bias: bool) -> None:
        super().__init__()
        if input_size <= 0 or hidden_size <= 0:
            raise ValueError(
                f"{type(self).__name__} needs positive lengths, not {input_size} and {hidden_size}"
            )
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias

    def _draw(
        self, inputs: int, suffix: str, dtype: DTypeLike, rng: np.random.Generator | None
    ) -> None:
        bound = 1 / math.sqrt(self.hidden_size)
        rows = GATES[self.kind] * self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "weight_ih": (rows, inputs),
            "weight_hh": (rows, self.hidden_size),
        }
        if self.bias:
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
        for name, shape in shapes.items():
            setattr(self, name + suffix, drawn(rng, bound, shape, dtype))

    def _weights(self, suffix: str = "") -> list[Any]:
        names = ["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if self.bias else [])]
        return [getattr(self, name + suffix) for name in names]

    def _first_states(self, hx: Any, shape: tuple[int, ...], like: Tensor) -> tuple[Any, ...]:
        """Returns the given states after a check; zeros if none are given."""
        if hx is None:
            return (namespace(like.data).zeros(shape, dtype=like.dtype),) * self.states
        given = hx if self.states > 1 else (hx,)
        if len(given) != self.states or any(state.shape != shape for state in given):
            shapes = [state.shape for state in given]
            raise ValueError(f"{self!r} needs {self.states} states of shape {shape}, not {shapes}")
        return tuple(given)

    def _check_input(self, x: Any, axes: tuple[int, ...]) -> None:
        if x.ndim not in axes or x.shape[-1] != self.input_size:
            raise ValueError(
                f"{self!r} needs an input of {' or '.join(map(str, axes))} axes, the last of "
                f"length {self.input_size}, not shape {x.shape}"
            )


class _Cell(_Recurrent):
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        bias: bool = True,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias=bias)
        self._draw(input_size, "", dtype, rng)

    def _step(self, x: Any, hx: Any) -> tuple[Any, ...]:
        self._check_input(x, (1, 2))
        states = self._first_states(hx, (*x.shape[:-1], self.hidden_size), self._weights()[0])
        batch = x.reshape(1, x.shape[0] if x.ndim == 2 else 1, self.input_size)
        if x.ndim == 1:
            states = tuple(state.reshape(1, self.hidden_size) for state in states)
        _, *found = ops.sequences.recurrence(self.kind, batch, states, *self._weights())
        return tuple(state if x.ndim == 2 else state[0] for state in found)


class RNNCell(_Cell):
    """`h = tanh(weight_ih @ x + bias_ih + weight_hh @ h + bias_hh)`; Elman (1990).

    Args:
        input_size: The length of the last axis of the input.
        hidden_size: The length of the last axis of the state.
        bias: True to add the two biases.
        nonlinearity: `tanh` or `relu`.
        dtype: The dtype of the parameters; floating-point.
        rng: The generator of their first values; None for the generator of `manual_seed`.

    Raises:
        ValueError: A length is not positive, `nonlinearity` is unknown, or `dtype` is not
            floating-point.

    >>> RNNCell(3, 2)(np.ones((5, 3), np.float32)).shape
    (5, 2)
    """

    _usual: ClassVar = {"bias": True, "nonlinearity": "tanh"}

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        bias: bool = True,
        nonlinearity: str = "tanh",
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.__dict__["kind"] = _kind(nonlinearity)  # before the parameters, which depend on it
        self.__dict__["nonlinearity"] = nonlinearity
        super().__init__(input_size, hidden_size, bias=bias, dtype=dtype, rng=rng)

    def forward(self, x: Any, hx: Any = None) -> Tensor:
        """Returns the next state, with `x` of shape (batch, input_size) or (input_size,)."""
        (h,) = self._step(x, hx)
        return h  # type: ignore[no-any-return]


class GRUCell(_Cell):
    """One step of a gated recurrent unit (Cho et al., 2014), with gates in the order r, z, n.

        r, z = sigmoid of their parts of weight_ih @ x + bias_ih + weight_hh @ h + bias_hh
        n = tanh(weight_in @ x + bias_in + r * (weight_hn @ h + bias_hn))
        h = (1 - z) * n + z * h

    Args:
        input_size: The length of the last axis of the input.
        hidden_size: The length of the last axis of the state.
        bias: True to add the two biases.
        dtype: The dtype of the parameters; floating-point.
        rng: The generator of their first values; None for the generator of `manual_seed`.

    Raises:
        ValueError: A length is not positive, or `dtype` is not floating-point.

    >>> GRUCell(3, 2)(np.ones((5, 3), np.float32)).shape
    (5, 2)
    """

    kind = "gru"

    def forward(self, x: Any, hx: Any = None) -> Tensor:
        """Returns the next state, with `x` of shape (batch, input_size) or (input_size,)."""
        (h,) = self._step(x, hx)
        return h  # type: ignore[no-any-return]


class LSTMCell(_Cell):
    """One step of a long short-term memory (Hochreiter and Schmidhuber, 1997), gates i, f, g, o.

        i, f, o = sigmoid, g = tanh of their parts of
                  weight_ih @ x + bias_ih + weight_hh @ h + bias_hh
        c = f * c + i * g
        h = o * tanh(c)

    Args:
        input_size: The length of the last axis of the input.
        hidden_size: The length of the last axis of the states.
        bias: True to add the two biases.
        dtype: The dtype of the parameters; floating-point.
        rng: The generator of their first values; None for the generator of `manual_seed`.

    Raises:
        ValueError: A length is not positive, or `dtype` is not floating-point.

    >>> h, c = LSTMCell(3, 2)(np.ones((5, 3), np.float32))
    >>> h.shape, c.shape
    ((5, 2), (5, 2))
    """

    kind = "lstm"
    states = 2

    def forward(self, x: Any, hx: Any = None) -> tuple[Tensor, Tensor]:
        """Returns the next h and c, with `x` of shape (batch, input_size) or (input_size,)."""
        h, c = self._step(x, hx)
        return h, c


class _Sequence(_Recurrent):
    _usual: ClassVar = {
        "bias": True,
        "num_layers": 1,
        "batch_first": False,
        "dropout": 0.0,
        "bidirectional": False,
    }

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias=bias)
        if num_layers <= 0 or not 0 <= dropout <= 1:
            raise ValueError(
                f"{type(self).__name__} needs layers and 0 <= dropout <= 1, not {num_layers} and "
                f"{dropout}"
            )
        self.num_layers, self.batch_first = num_layers, batch_first
        self.dropout, self.bidirectional = dropout, bidirectional
        self._suffixes = ["", "_reverse"] if bidirectional else [""]
        for layer in range(num_layers):
            inputs = input_size if layer == 0 else hidden_size * len(self._suffixes)
            for suffix in self._suffixes:
                self._draw(inputs, f"_l{layer}{suffix}", dtype, rng)

    def _run(self, x: Any, hx: Any) -> tuple[Any, tuple[Any, ...]]:
        self._check_input(x, (2, 3))
        single = x.ndim == 2
        if single:
            x = x.reshape(x.shape[0], 1, self.input_size)
        elif self.batch_first:
            x = x.swapaxes(0, 1)
        if len(x) == 0:
            raise ValueError(f"{self!r} was given a sequence without steps")
        count = self.num_layers * len(self._suffixes)
        batch = () if single else (x.shape[1],)
        states = self._first_states(hx, (count, *batch, self.hidden_size), self._weights("_l0")[0])
        if single:
            states = tuple(state.reshape(count, 1, self.hidden_size) for state in states)
        y, last = self._layers(x, states)
        if single:
            shape = (count, self.hidden_size)
            return y.reshape(y.shape[0], y.shape[2]), tuple(state.reshape(shape) for state in last)
        return y.swapaxes(0, 1) if self.batch_first else y, last

    def _layers(self, x: Any, states: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        last: list[list[Any]] = []
        for layer in range(self.num_layers):
            outputs = []
            for suffix in self._suffixes:
                own = tuple(state[len(last)] for state in states)
                y, *final = ops.sequences.recurrence(
                    self.kind, x, own, *self._weights(f"_l{layer}{suffix}"), reverse=bool(suffix)
                )
                outputs.append(y)
                last.append(final)
            x = outputs[0] if len(outputs) == 1 else np.concatenate(outputs, axis=-1)
            if self.dropout and layer < self.num_layers - 1:
                x = dropout(x, self.dropout, self.training)
        if len(last) == 1:
            return x, tuple(state.reshape(1, *state.shape) for state in last[0])
        return x, tuple(ops.stack(*parts, axis=0) for parts in zip(*last, strict=True))


class RNN(_Sequence):
    """Layers of `RNNCell` over a sequence.

    Args:
        input_size: The length of the last axis of the input.
        hidden_size: The length of the last axis of each state.
        num_layers: The number of layers; each takes the output of the one before.
        nonlinearity: `tanh` or `relu`.
        bias: True to add the two biases of each layer.
        batch_first: True for input and output of shape (batch, steps, ...), False for
            (steps, batch, ...). The shape of states is the same in both cases.
        dropout: The probability with which a number between two layers is dropped in training.
        bidirectional: True to run each layer in both directions; its output is both results, one
            after the other along the last axis.
        dtype: The dtype of the parameters; floating-point.
        rng: The generator of their first values; None for the generator of `manual_seed`.

    Raises:
        ValueError: A number is out of its range, or `dtype` is not floating-point.

    >>> y, h = RNN(3, 2, 2, bidirectional=True)(np.ones((7, 5, 3), np.float32))
    >>> y.shape, h.shape
    ((7, 5, 4), (4, 5, 2))
    """

    _usual: ClassVar = {**_Sequence._usual, "nonlinearity": "tanh"}

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.__dict__["kind"] = _kind(nonlinearity)  # before the parameters, which depend on it
        self.__dict__["nonlinearity"] = nonlinearity
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            dtype=dtype,
            rng=rng,
        )

    def forward(self, x: Any, hx: Any = None) -> tuple[Tensor, Tensor]:
        """Returns h of all steps of the last layer, and the last h of all layers.

        Args:
            x: The inputs, shape (steps, batch, input_size), or (steps, input_size).
            hx: The first h, shape (layers * directions, batch, hidden_size); None for zeros.

        Raises:
            ValueError: A shape does not fit, or there are no steps.
        """
        y, (h,) = self._run(x, hx)
        return y, h


class GRU(_Sequence):
    """Layers of `GRUCell` over a sequence.

    Args:
        input_size: The length of the last axis of the input.
        hidden_size: The length of the last axis of each state.
        num_layers: The number of layers, as for `RNN`.
        bias: True to add the two biases of each layer.
        batch_first: The order of the axes, as for `RNN`.
        dropout: The probability of dropout between two layers, as for `RNN`.
        bidirectional: True to run each layer in both directions, as for `RNN`.
        dtype: The dtype of the parameters; floating-point.
        rng: The generator of their first values; None for the generator of `manual_seed`.

    Raises:
        ValueError: A number is out of its range, or `dtype` is not floating-point.

    >>> y, h = GRU(3, 2)(np.ones((7, 5, 3), np.float32))
    >>> y.shape, h.shape
    ((7, 5, 2), (1, 5, 2))
    """

    kind = "gru"

    def forward(self, x: Any, hx: Any = None) -> tuple[Tensor, Tensor]:
        """Returns h of all steps of the last layer, and the last h of all layers, as `RNN` does."""
        y, (h,) = self._run(x, hx)
        return y, h


class LSTM(_Sequence):
    """Layers of `LSTMCell` over a sequence.

    Args:
        input_size: The length of the last axis of the input.
        hidden_size: The length of the last axis of each state.
        num_layers: The number of layers, as for `RNN`.
        bias: True to add the two biases of each layer.
        batch_first: The order of the axes, as for `RNN`.
        dropout: The probability of dropout between two layers, as for `RNN`.
        bidirectional: True to run each layer in both directions, as for `RNN`.
        dtype: The dtype of the parameters; floating-point.
        rng: The generator of their first values; None for the generator of `manual_seed`.

    Raises:
        ValueError: A number is out of its range, or `dtype` is not floating-point.

    >>> y, (h, c) = LSTM(3, 2, batch_first=True)(np.ones((5, 7, 3), np.float32))
    >>> y.shape, h.shape, c.shape
    ((5, 7, 2), (1, 5, 2), (1, 5, 2))
    """

    kind = "lstm"
    states = 2

    def forward(self, x: Any, hx: Any = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Returns h of all steps of the last layer, and the last (h, c) of all layers.

        Args:
            x: The inputs, shape (steps, batch, input_size), or (steps, input_size).
            hx: The first (h, c), each of shape (layers * directions, batch, hidden_size); None for
                zeros.

        Raises:
            ValueError: A shape does not fit, or there are no steps.
        """
        y, (h, c) = self._run(x, hx)
        return y, (h, c)
