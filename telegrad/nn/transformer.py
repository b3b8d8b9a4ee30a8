"""One layer of a transformer's encoder: Vaswani et al., "Attention is all you need" (2017)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from telegrad.autograd import Tensor
from telegrad.nn import functional
from telegrad.nn.attention import MultiheadAttention
from telegrad.nn.dropout import Dropout
from telegrad.nn.layers import Linear
from telegrad.nn.module import Module
from telegrad.nn.normalization import LayerNorm
from telegrad.types import DTypeLike


class TransformerEncoderLayer(Module):
    """Self-attention, then two linear layers; each part is added to its input and normalised.

    Args:
        d_model: The length of the last axis.
        nhead: The number of heads of the attention.
        dim_feedforward: The length between the two linear layers.
        dropout: The probability with which a number is dropped in training.
        activation: `relu`, `gelu` or a function of a Tensor.
        layer_norm_eps: The `eps` of the two `LayerNorm`s.
        batch_first: The order of the axes, as for `MultiheadAttention`.
        norm_first: True to normalise before attention and linear layers, False to normalise the
            sums.
        bias: True to give linear layers, attention and norms a bias.
        dtype: The dtype of the parameters; floating-point.
        rng: The generator of their first values; None for the generator of `manual_seed`.

    Raises:
        ValueError: A number is out of its range, or `activation` is unknown.

    >>> layer = TransformerEncoderLayer(8, 2, dim_feedforward=16)
    >>> layer(np.ones((7, 5, 8), np.float32), is_causal=True).shape
    (7, 5, 8)
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        *,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__()
        named: dict[Any, Callable[[Any], Tensor]] = {
            "relu": functional.relu,
            "gelu": functional.gelu,
        }
        if isinstance(activation, str) and activation not in named:
            raise ValueError(f"activation is 'relu', 'gelu' or a function, not {activation!r}")
        self.activation = named[activation] if isinstance(activation, str) else activation
        self.norm_first = norm_first
        self.self_attn = MultiheadAttention(
            d_model,
            nhead,
            dropout=dropout,
            bias=bias,
            batch_first=batch_first,
            dtype=dtype,
            rng=rng,
        )
        self.linear1 = Linear(d_model, dim_feedforward, bias=bias, dtype=dtype, rng=rng)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias=bias, dtype=dtype, rng=rng)
        self.norm1 = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, dtype=dtype)
        self.norm2 = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, dtype=dtype)
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)

    def forward(
        self,
        src: Any,
        src_mask: Any = None,
        src_key_padding_mask: Any = None,
        *,
        is_causal: bool = False,
    ) -> Tensor:
        """Returns a sequence of the same shape.

        Args:
            src: The sequence, shape (steps, batch, d_model), or (steps, d_model).
            src_mask: The `attn_mask` of `MultiheadAttention`.
            src_key_padding_mask: The `key_padding_mask` of `MultiheadAttention`.
            is_causal: True to let each step read only steps up to itself; needs no mask.
        """

        def attend(x: Any) -> Tensor:
            read, _ = self.self_attn(
                x,
                x,
                x,
                attn_mask=src_mask,
                key_padding_mask=src_key_padding_mask,
                need_weights=False,
                is_causal=is_causal,
            )
            return self.dropout1(read)

        if self.norm_first:
            x: Tensor = src + attend(self.norm1(src))
            return x + self._feed(self.norm2(x))
        x = self.norm1(src + attend(src))
        return self.norm2(x + self._feed(x))

    def _feed(self, x: Any) -> Tensor:
        inner = self.dropout(self.activation(self.linear1(x)))
        return self.dropout2(self.linear2(inner))
