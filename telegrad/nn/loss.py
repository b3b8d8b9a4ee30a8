"""Losses, as functions and as modules."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from telegrad import kernels
from telegrad.arrays import (
    array_beside,
    check_devices,
    is_cupy,
    is_floating,
    namespace,
    report_ends,
    report_place,
)
from telegrad.autograd import Tensor, as_tensor, ops
from telegrad.autograd.seams import array_of, cast_as
from telegrad.nn.module import OfFunction
from telegrad.types import Array

# -- losses as functions -------------------------------------------------------------------------
#
# `reduction` is "mean" (over all items, unless the docstring says otherwise), "sum" or "none". The
# mean of no items raises, where PyTorch returns NaN. Shapes must be equal, where PyTorch
# broadcasts. A loss has the dtype of the outputs `x`: targets and weights, often float64, are cast
# to it.

_IGNORED = -100


def mse_loss(x: Tensor | Array, target: Tensor | Array, *, reduction: str = "mean") -> Tensor:
    """Returns the squared distances.

    >>> import numpy as np
    >>> mse_loss(np.array([1.0, 2.0]), np.array([1.0, 4.0])).item()
    2.0
    """
    return _reduced(ops.square(_difference(x, target)), reduction)


def l1_loss(x: Tensor | Array, target: Tensor | Array, *, reduction: str = "mean") -> Tensor:
    """Returns the absolute distances.

    >>> import numpy as np
    >>> l1_loss(np.array([1.0, 2.0]), np.array([1.0, 4.0])).item()
    1.0
    """
    return _reduced(abs(_difference(x, target)), reduction)


def huber_loss(
    x: Tensor | Array, target: Tensor | Array, *, reduction: str = "mean", delta: float = 1.0
) -> Tensor:
    """Returns half the squared distances up to `delta`, and a straight line beyond.

    P. J. Huber, "Robust estimation of a location parameter" (1964).

    Raises:
        ValueError: `delta` is not positive.

    >>> import numpy as np
    >>> huber_loss(np.array([1.0, 2.0]), np.array([1.0, 4.0])).item()
    0.75
    """
    if not delta > 0:
        raise ValueError(f"delta must be positive, not {delta}")
    return _reduced(ops.layers.huber(_difference(x, target), delta=delta), reduction)


def smooth_l1_loss(
    x: Tensor | Array, target: Tensor | Array, *, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """Returns `huber_loss(x, target, delta=beta) / beta`; `l1_loss` where `beta` is 0.

    Raises:
        ValueError: `beta` is negative.

    >>> import numpy as np
    >>> smooth_l1_loss(np.array([1.0, 2.0]), np.array([1.0, 4.0])).item()
    0.75
    """
    if beta < 0:
        raise ValueError(f"beta must not be negative, it is {beta}")
    if beta == 0:
        return l1_loss(x, target, reduction=reduction)
    return _reduced(ops.layers.huber(_difference(x, target), delta=beta) / beta, reduction)


def binary_cross_entropy(
    x: Tensor | Array,
    target: Tensor | Array,
    weight: Tensor | Array | None = None,
    *,
    reduction: str = "mean",
) -> Tensor:
    """Returns `-(target * log(x) + (1 - target) * log(1 - x))`, with logarithms of at least -100.

    Args:
        x: Probabilities.
        target: Probabilities, of the same shape.
        weight: A factor of each loss, which broadcasts; None for 1.
        reduction: "mean", "sum" or "none".

    >>> import numpy as np
    >>> round(binary_cross_entropy(np.array([0.5, 0.75]), np.array([1.0, 0.0])).item(), 6)
    1.039721
    """
    (x,) = cast_as("loss", x)
    target = _matching(target, x)
    if weight is not None:
        weight = _cast(weight, x)
        x, target = _shown(x, target, weight)
    losses = ops.layers.binary_cross_entropy(x, target)
    return _reduced(losses if weight is None else _weighted(losses, weight), reduction)


def binary_cross_entropy_with_logits(
    x: Tensor | Array,
    target: Tensor | Array,
    weight: Tensor | Array | None = None,
    *,
    reduction: str = "mean",
    pos_weight: Tensor | Array | None = None,
) -> Tensor:
    """Returns `binary_cross_entropy(sigmoid(x), target)`, exact for `x` of any size.

    Args:
        x: Logits.
        target: Probabilities, of the same shape.
        weight: A factor of each loss, which broadcasts; None for 1.
        reduction: "mean", "sum" or "none".
        pos_weight: A factor of the losses of positive targets, which broadcasts; None for 1.

    >>> import numpy as np
    >>> x, target = np.array([0.0, np.log(3.0)]), np.array([1.0, 0.0])
    >>> round(binary_cross_entropy_with_logits(x, target).item(), 6)
    1.039721
    """
    (x,) = cast_as("loss", x)
    target = _matching(target, x)
    if weight is not None:
        weight = _cast(weight, x)
        x, target = _shown(x, target, weight)
    factor = None if pos_weight is None else _cast(pos_weight, x)
    losses = ops.layers.cross_entropy_of_logits(x, target, factor)
    return _reduced(losses if weight is None else _weighted(losses, weight), reduction)


def kl_div(
    x: Tensor | Array,
    target: Tensor | Array,
    *,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """Returns `target * (log(target) - x)`, 0 where `target` is 0; its sum is the divergence.

    If `target` is 0, the loss is 0 whatever `x` is, and so are its slopes.

    S. Kullback and R. A. Leibler, "On information and sufficiency" (1951).

    Args:
        x: Logarithms of probabilities.
        target: Probabilities, or their logarithms, of the same shape.
        reduction: "mean", "sum", "none", or "batchmean": the sum divided by the length of the first
            axis.
        log_target: True if `target` holds logarithms.

    >>> import numpy as np
    >>> x, target = np.log(np.array([[0.25, 0.75]])), np.array([[0.5, 0.5]])
    >>> round(kl_div(x, target, reduction="batchmean").item(), 6)
    0.143841
    """
    (x,) = cast_as("loss", x)
    target = _matching(target, x)
    share = ops.exp(target) if log_target else target
    none = share == 0
    logarithm = target if log_target else ops.log(ops.where(target > 0, target, 1.0))
    losses = share * ops.where(none, 0.0, logarithm - ops.where(none, 0.0, x))
    if reduction == "batchmean":
        if not losses.size:
            raise ValueError("the mean of no losses is not defined; the batch is empty")
        return as_tensor(losses.sum() / losses.shape[0])
    return _reduced(losses, reduction)


def nll_loss(
    x: Tensor | Array,
    target: Tensor | Array,
    weight: Tensor | Array | None = None,
    *,
    ignore_index: int = _IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """Returns `-x` at the labels; after `log_softmax` this is the cross entropy.

    Args:
        x: Logarithms of probabilities, of shape (n, classes, ...) or (classes,).
        target: Labels: integers from 0 to classes - 1, of shape (n, ...) or ().
        weight: A factor for each class, as for `cross_entropy`.
        ignore_index: A label that does not count.
        reduction: "mean", "sum" or "none".

    >>> import numpy as np
    >>> round(nll_loss(np.log(np.array([[0.25, 0.75]])), np.array([1])).item(), 6)
    0.287682
    """
    (x,) = cast_as("loss", x)
    found = _labelled(x, array_beside(array_of(target), array_of(x)), weight, ignore_index)
    losses = -ops.layers.picked(found.scores, found.labels)
    return _over_labels(losses, found, reduction)


def cross_entropy(
    x: Tensor | Array,
    target: Tensor | Array,
    weight: Tensor | Array | None = None,
    *,
    ignore_index: int = _IGNORED,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Returns `-log_softmax(x)` at the labels.

    Args:
        x: Logits, floating-point, of shape (n, classes, ...) or (classes,).
        target: Labels: integers from 0 to classes - 1, of shape (n, ...) or (); or probabilities,
            in the shape of `x`.
        weight: A factor for the losses of each class, of shape (classes,). The mean is then divided
            by the sum of the weights of all labels.
        ignore_index: A label that does not count.
        reduction: "mean", "sum" or "none".
        label_smoothing: The part of each target that is spread evenly over the classes (C. Szegedy
            et al., "Rethinking the inception architecture for computer vision", 2016).

    Returns:
        A scalar in the dtype of `x`; with the reduction "none", one number per label.

    Raises:
        TypeError: The labels are not integers.
        ValueError: A label is not a class, the mean has no label that counts, or shapes do not fit.
            For labels on a GPU this function does not wait. A label that is not a class counts as
            ignored, and the next call that waits for a Tensor of a GPU, or the next cross entropy,
            raises. The mean of no labels is NaN.

    >>> import numpy as np
    >>> round(cross_entropy(np.zeros((3, 2)), np.array([0, 1, 0])).item(), 4)
    0.6931
    """
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing is from 0 to 1, not {label_smoothing}")
    scores = array_of(x)
    target = target if isinstance(target, Tensor) else array_beside(target, scores)
    kind = target.dtype.kind
    if kind not in "iu" and is_floating(target.dtype) and target.shape == x.shape:
        (x,) = cast_as("loss", x)
        return _of_probabilities(x, target, weight, reduction, label_smoothing)
    there = type(scores) is not np.ndarray and is_cupy(scores)
    if there and weight is None and not label_smoothing:
        return _of_labels_there(x, target, ignore_index, reduction)
    if label_smoothing or weight is not None:  # else the operation below does it
        (x,) = cast_as("loss", x)
    found = _labelled(x, target, weight, ignore_index)
    if not label_smoothing:
        if weight is not None:
            found = found._replace(scores=_shown_rows(found.scores, array_of(found.weights) == 0))
        mean = reduction == "mean" and found.weights is None and found.labels.size > 0
        losses = ops.cross_entropy(found.scores, found.labels, mean=mean, checked=True)
        return as_tensor(losses) if mean else _over_labels(losses, found, reduction)
    logarithms = ops.log_softmax(found.scores)
    even: Any = logarithms if weight is None else _weighted(logarithms, _cast(weight, x))
    even = even.sum(-1)
    if found.counted is not None:
        even = ops.where(found.counted, even, 0.0)
    losses = -(1 - label_smoothing) * ops.layers.picked(logarithms, found.labels)
    return _over_labels(losses, found, reduction, -label_smoothing / x.shape[found.axis] * even)


def _of_labels_there(x: Any, target: Any, ignore_index: int, reduction: str) -> Tensor:
    """Returns the cross entropy on a GPU, and does not wait for it.

    A label that is no class does not count, and the host raises its error later.
    """
    labels, axis = _labels(array_of(x), target)
    scores = x if x.ndim <= 2 else _turned(x)
    found = report_place(labels, kernels.check_classes, x.shape[axis])
    if reduction == "mean" and labels.size:
        return as_tensor(
            ops.mean_cross_entropy(scores, labels, found=found, ignored=ignore_index)[0]
        )
    return _reduced(ops.cross_entropy(scores, labels, found=found, ignored=ignore_index), reduction)


def _of_probabilities(
    x: Any, target: Any, weight: Any, reduction: str, label_smoothing: float
) -> Tensor:
    axis = min(1, x.ndim - 1)
    classes = x.shape[axis]
    scores, wanted = _turned(x), _turned(_cast(target, x))
    if label_smoothing:
        wanted = wanted * (1 - label_smoothing) + label_smoothing / classes
    if weight is not None:
        wanted = wanted * _cast(weight, x)
    scores = _shown_rows(scores, (array_of(wanted) == 0).all(-1))
    return _reduced(-_weighted(ops.log_softmax(scores), wanted).sum(-1), reduction)


class _Labelled(NamedTuple):
    """Scores with labels that are all valid classes.

    Attributes:
        scores: The scores, with the classes along the last axis; 0 where a label does not count.
        labels: Integers; 0 in place of a label that does not count.
        weights: The weight of each label, 0 for one that does not count; None if all are 1. A
            Tensor if the class weights are a Tensor.
        counted: A mask of the labels that count; None if all do.
        axis: The axis of the classes in the input.
    """

    scores: Any
    labels: Any
    weights: Any
    counted: Any
    axis: int


def _labels(scores: Any, target: Any) -> tuple[Any, int]:
    """Returns the labels as an array that fits the logits, and the axis of the classes."""
    labels = array_of(target)
    check_devices("logits and labels", scores, labels)
    shape = scores.shape
    axis = min(1, len(shape) - 1)
    if not shape or labels.shape != (*shape[:axis], *shape[axis + 1 :]):
        raise ValueError(
            f"logits of shape (n, classes, ...) need labels of shape (n, ...); got {shape} and "
            f"{labels.shape}"
        )
    if labels.dtype.kind not in "iu":
        raise TypeError(f"labels are integers, one per row of the logits, not {labels.dtype}")
    return labels, axis


def _labelled(x: Any, target: Any, weight: Any, ignore_index: int) -> _Labelled:
    scores = array_of(x)
    labels, axis = _labels(scores, target)
    shape = scores.shape
    classes = shape[axis]
    count = _counted if type(labels) is np.ndarray else _counted_there
    labels, counted = count(labels, classes, ignore_index)
    weights = None if counted is None else counted.astype(x.dtype)
    if weight is not None:
        each = _cast(weight, x)
        check_devices("logits and weight", scores, array_of(each))
        if each.shape != (classes,):
            raise ValueError(f"weight has shape {each.shape}, ({classes},) needed: one per class")
        weights = each[labels] if weights is None else each[labels] * weights
    turned = x if len(shape) <= 2 else _turned(x)
    if counted is not None:  # scores of a label that does not count may be infinite or NaN
        turned = ops.where(counted[..., None], turned, 0.0)
    return _Labelled(turned, labels, weights, counted, axis)


def _counted(labels: Any, classes: int, ignore_index: int) -> tuple[Any, Any]:
    """Returns labels that are classes, and a mask of those that count; None if all do."""
    counted = None
    low, high = kernels.label_range(labels)
    if low <= ignore_index <= high:
        counted = labels != ignore_index
        labels = labels * counted
        low, high = kernels.label_range(labels)
    kernels.check_classes((low, high), classes)
    return labels, counted


def _counted_there(labels: Any, classes: int, ignore_index: int) -> tuple[Any, Any]:
    """Returns what `_counted` does, of labels on a GPU and without a wait for it.

    A label that is no class does not count, and the host raises its error later.
    """
    if not labels.size:
        return labels, None
    labels = labels.astype(np.int64, copy=False)  # uint8 does not compare with -100 in CuPy
    counted = (labels >= 0) & (labels < classes)
    known = counted | (labels == ignore_index)
    report_ends(namespace(labels).where(known, 0, labels), kernels.check_classes, classes)
    if 0 <= ignore_index < classes:
        counted = counted & (labels != ignore_index)
    return labels * counted, counted


def _turned(x: Any) -> Any:
    """Returns `x` with the classes along the last axis."""
    if x.ndim <= 2:
        return x
    return ops.transpose(x, axes=(0, *range(2, x.ndim), 1))


def _over_labels(losses: Any, found: _Labelled, reduction: str, further: Any = None) -> Tensor:
    if found.counted is not None:  # before the weights, because an ignored loss may be infinite
        losses = ops.where(found.counted, losses, 0.0)
    if found.weights is not None:
        losses = _weighted(losses, found.weights)
    if further is not None:
        losses = losses + further
    if reduction != "mean" or found.weights is None:
        return _reduced(losses, reduction)
    average = found.weights.mean() if found.weights.size else 0.0  # a sum could overflow float16
    if not is_cupy(array_of(average)) and not average:
        raise ValueError("the mean of no losses is not defined; every label is ignored")
    return as_tensor(losses.mean() / average)


def _difference(x: Any, target: Any) -> Any:
    (x,) = cast_as("loss", x)
    return x - _matching(target, x)


def _matching(target: Any, x: Any) -> Any:
    target = _cast(target, x)
    if x.shape != target.shape:
        raise ValueError(f"outputs of shape {x.shape} do not fit targets of shape {target.shape}")
    return target


def _shown(x: Any, target: Any, weight: Any) -> tuple[Any, Any]:
    """Returns outputs and targets with 0.5 for infinities and NaN that have the weight 0.

    Their losses do not count, but 0 times their slopes would be NaN.
    """
    known = np.isfinite(array_of(x)) & np.isfinite(array_of(target))
    hidden = (array_of(weight) == 0) & ~known
    if not is_cupy(hidden) and not hidden.any():
        return x, target
    return ops.where(hidden, 0.5, x), ops.where(hidden, 0.5, target)


def _shown_rows(scores: Any, uncounted: Any) -> Any:
    """Returns scores with 0 in rows that do not count and have infinities or NaN, as `_shown`."""
    if not is_cupy(uncounted) and not uncounted.any():
        return scores
    hidden = uncounted & ~np.isfinite(array_of(scores)).all(-1)
    return ops.where(hidden[..., None], 0.0, scores)


def _weighted(losses: Any, weight: Any) -> Any:
    """Returns `losses * weight`, but 0 where the weight is 0 and the loss is infinite or NaN."""
    return ops.where((weight == 0) & ~np.isfinite(losses), 0.0, losses) * weight


def _cast(value: Any, x: Any) -> Any:
    """Returns `value` in the dtype of `x`; a list becomes an array on the device of `x`."""
    if not isinstance(value, Tensor):
        value = array_beside(value, array_of(x))
    numbers = is_floating(value.dtype) or value.dtype.kind in "iub"
    if value.dtype != x.dtype and is_floating(x.dtype) and numbers:
        value = value.astype(x.dtype)
    return value


def _reduced(losses: Any, reduction: str) -> Tensor:
    if reduction == "none":
        return as_tensor(losses)
    if reduction == "sum":
        return as_tensor(losses.sum())
    if reduction != "mean":
        raise ValueError(f"reduction is 'mean', 'sum' or 'none', not {reduction!r}")
    if not losses.size:
        raise ValueError("the mean of no losses is not defined: there are no rows")
    return as_tensor(losses.mean())


# -- losses as modules ---------------------------------------------------------------------------


class _Loss(OfFunction):
    """The base of losses: holds the reduction. A weight is a buffer, so `state_dict()` has it.

    Raises:
        ValueError: `reduction` is unknown.
    """

    reductions: tuple[str, ...] = ("mean", "sum", "none")
    reduction: str

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__()
        self._keep(reduction=reduction)

    def _keep(self, **options: Any) -> None:
        super()._keep(**options)
        if self.reduction not in self.reductions:
            raise ValueError(f"reduction is one of {self.reductions}, not {self.reduction!r}")
        for name in ("weight", "pos_weight"):
            if options.get(name) is not None:
                self.register_buffer(name, as_tensor(options[name]))

    def forward(self, x: Any, target: Any) -> Tensor:  # type: ignore[override]  # a target more
        """Returns the losses of `x`, reduced."""
        return self._function(x, target, **{name: getattr(self, name) for name in self._options})


class MSELoss(_Loss):
    """The module form of `functional.mse_loss`.

    >>> import numpy as np
    >>> MSELoss()(np.array([1.0, 2.0]), np.array([1.0, 4.0])).item()
    2.0
    """

    _function = staticmethod(mse_loss)


class L1Loss(_Loss):
    """The module form of `functional.l1_loss`.

    >>> import numpy as np
    >>> L1Loss()(np.array([1.0, 2.0]), np.array([1.0, 4.0])).item()
    1.0
    """

    _function = staticmethod(l1_loss)


class SmoothL1Loss(_Loss):
    """The module form of `functional.smooth_l1_loss`.

    >>> import numpy as np
    >>> SmoothL1Loss()(np.array([1.0, 2.0]), np.array([1.0, 4.0])).item()
    0.75
    """

    _function = staticmethod(smooth_l1_loss)

    def __init__(self, *, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__()
        self._keep(reduction=reduction, beta=beta)


class HuberLoss(_Loss):
    """The module form of `functional.huber_loss`.

    >>> import numpy as np
    >>> HuberLoss()(np.array([1.0, 2.0]), np.array([1.0, 4.0])).item()
    0.75
    """

    _function = staticmethod(huber_loss)

    def __init__(self, *, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__()
        self._keep(reduction=reduction, delta=delta)


class BCELoss(_Loss):
    """The module form of `functional.binary_cross_entropy`.

    >>> import numpy as np
    >>> round(BCELoss()(np.array([0.5, 0.75]), np.array([1.0, 0.0])).item(), 6)
    1.039721
    """

    _function = staticmethod(binary_cross_entropy)
    weight: Tensor | None

    def __init__(self, weight: Tensor | Array | None = None, *, reduction: str = "mean") -> None:
        super().__init__()
        self._keep(reduction=reduction, weight=weight)


class BCEWithLogitsLoss(_Loss):
    """The module form of `functional.binary_cross_entropy_with_logits`.

    >>> import numpy as np
    >>> round(BCEWithLogitsLoss()(np.array([0.0, np.log(3.0)]), np.array([1.0, 0.0])).item(), 6)
    1.039721
    """

    _function = staticmethod(binary_cross_entropy_with_logits)
    weight: Tensor | None
    pos_weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | Array | None = None,
        *,
        reduction: str = "mean",
        pos_weight: Tensor | Array | None = None,
    ) -> None:
        super().__init__()
        self._keep(reduction=reduction, weight=weight, pos_weight=pos_weight)


class NLLLoss(_Loss):
    """The module form of `functional.nll_loss`.

    >>> import numpy as np
    >>> round(NLLLoss()(np.log(np.array([[0.25, 0.75]])), np.array([1])).item(), 6)
    0.287682
    """

    _function = staticmethod(nll_loss)
    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | Array | None = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        self._keep(reduction=reduction, weight=weight, ignore_index=ignore_index)


class CrossEntropyLoss(_Loss):
    """The module form of `functional.cross_entropy`.

    >>> import numpy as np
    >>> loss = CrossEntropyLoss(label_smoothing=0.1)
    >>> round(loss(np.zeros((3, 2)), np.array([0, 1, 0])).item(), 4)
    0.6931
    """

    _function = staticmethod(cross_entropy)
    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | Array | None = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self._keep(
            reduction=reduction,
            weight=weight,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
        )


class KLDivLoss(_Loss):
    """The module form of `functional.kl_div`.

    >>> import numpy as np
    >>> x, target = np.log(np.array([[0.25, 0.75]])), np.array([[0.5, 0.5]])
    >>> round(KLDivLoss(reduction="batchmean")(x, target).item(), 6)
    0.143841
    """

    _function = staticmethod(kl_div)
    reductions = ("mean", "sum", "none", "batchmean")

    def __init__(self, *, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__()
        self._keep(reduction=reduction, log_target=log_target)
