"""Losses as modules; `nn.losses` has the functions, and says what `reduction` is."""

from __future__ import annotations

from typing import Any

from telegrad.autograd import Tensor, as_tensor
from telegrad.nn import losses
from telegrad.nn.module import Module
from telegrad.types import Array

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CrossEntropyLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "MSELoss",
    "NLLLoss",
    "SmoothL1Loss",
]


class _Loss(Module):
    """A loss with its reduction; a weight is a buffer, so it is part of `state_dict()`.

    Raises:
        ValueError: `reduction` is unknown.
    """

    reductions: tuple[str, ...] = ("mean", "sum", "none")

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in self.reductions:
            raise ValueError(f"reduction is one of {self.reductions}, not {reduction!r}")
        self.reduction = reduction

    def _keep(self, name: str, value: Tensor | Array | None) -> None:
        if value is None:
            setattr(self, name, None)
        else:
            self.register_buffer(name, as_tensor(value))


class MSELoss(_Loss):
    """See `functional.mse_loss`."""

    def forward(self, x: Any, target: Any) -> Tensor:
        """Returns the squared distances."""
        return losses.mse_loss(x, target, reduction=self.reduction)


class L1Loss(_Loss):
    """See `functional.l1_loss`."""

    def forward(self, x: Any, target: Any) -> Tensor:
        """Returns the absolute distances."""
        return losses.l1_loss(x, target, reduction=self.reduction)


class SmoothL1Loss(_Loss):
    """See `functional.smooth_l1_loss`."""

    def __init__(self, *, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction=reduction)
        self.beta = beta

    def forward(self, x: Any, target: Any) -> Tensor:
        """Returns the distances, rounded off at 0."""
        return losses.smooth_l1_loss(x, target, reduction=self.reduction, beta=self.beta)


class HuberLoss(_Loss):
    """See `functional.huber_loss`."""

    def __init__(self, *, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction=reduction)
        self.delta = delta

    def forward(self, x: Any, target: Any) -> Tensor:
        """Returns half the squared distances, lines far away."""
        return losses.huber_loss(x, target, reduction=self.reduction, delta=self.delta)


class BCELoss(_Loss):
    """See `functional.binary_cross_entropy`."""

    weight: Tensor | None

    def __init__(self, weight: Tensor | Array | None = None, *, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        self._keep("weight", weight)

    def forward(self, x: Any, target: Any) -> Tensor:
        """Returns the cross entropy of probabilities."""
        return losses.binary_cross_entropy(x, target, self.weight, reduction=self.reduction)


class BCEWithLogitsLoss(_Loss):
    """See `functional.binary_cross_entropy_with_logits`."""

    weight: Tensor | None
    pos_weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | Array | None = None,
        *,
        reduction: str = "mean",
        pos_weight: Tensor | Array | None = None,
    ) -> None:
        super().__init__(reduction=reduction)
        self._keep("weight", weight)
        self._keep("pos_weight", pos_weight)

    def forward(self, x: Any, target: Any) -> Tensor:
        """Returns the cross entropy of logits."""
        return losses.binary_cross_entropy_with_logits(
            x, target, self.weight, reduction=self.reduction, pos_weight=self.pos_weight
        )


class NLLLoss(_Loss):
    """See `functional.nll_loss`."""

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | Array | None = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self._keep("weight", weight)
        self.ignore_index = ignore_index

    def forward(self, x: Any, target: Any) -> Tensor:
        """Returns what is lost at the labels."""
        return losses.nll_loss(
            x, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction
        )


class CrossEntropyLoss(_Loss):
    """See `functional.cross_entropy`.

    >>> import numpy as np
    >>> loss = CrossEntropyLoss(label_smoothing=0.1)
    >>> round(loss(np.zeros((3, 2)), np.array([0, 1, 0])).item(), 4)
    0.6931
    """

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | Array | None = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(reduction=reduction)
        self._keep("weight", weight)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, x: Any, target: Any) -> Tensor:
        """Returns the cross entropy of logits at labels, or with probabilities."""
        return losses.cross_entropy(
            x,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class KLDivLoss(_Loss):
    """See `functional.kl_div`."""

    reductions = ("mean", "sum", "none", "batchmean")

    def __init__(self, *, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction=reduction)
        self.log_target = log_target

    def forward(self, x: Any, target: Any) -> Tensor:
        """Returns the divergence of `x`, logarithms, from `target`."""
        return losses.kl_div(x, target, reduction=self.reduction, log_target=self.log_target)
