"""Losses: gradients to second order, weights, dtypes, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad import nn
from telegrad.autograd import Tensor, grad, gradcheck, ops
from tests.autograd.finite_differences import check_second_along_a_line

F = nn.functional
REDUCTIONS = ["mean", "sum", "none"]


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def probable(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(0.1, 0.9, shape)


def reduced(losses: Any, reduction: str) -> Any:
    chosen: dict[str, Any] = {"mean": np.mean, "sum": np.sum, "none": np.asarray}
    return chosen[reduction](losses)


def _bce(x: Any, t: Any) -> Any:
    return -(t * np.log(x) + (1 - t) * np.log(1 - x))


# The function, the module, options, and what draws outputs and targets.
PAIRS: dict[str, tuple[Any, ...]] = {
    "mse": (F.mse_loss, nn.MSELoss, {}, normal),
    "l1": (F.l1_loss, nn.L1Loss, {}, normal),
    "huber": (F.huber_loss, nn.HuberLoss, {"delta": 0.7}, normal),
    "smooth": (F.smooth_l1_loss, nn.SmoothL1Loss, {"beta": 0.7}, normal),
    "smooth at 0": (F.smooth_l1_loss, nn.SmoothL1Loss, {"beta": 0.0}, normal),
    "bce": (F.binary_cross_entropy, nn.BCELoss, {}, probable),
    "logits": (F.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss, {}, probable),
    "kl": (F.kl_div, nn.KLDivLoss, {}, probable),
    "kl of logarithms": (F.kl_div, nn.KLDivLoss, {"log_target": True}, probable),
}
every_pair = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)


@every_pair
def test_gradients(pair: Any) -> None:
    function, _, options, draw = pair
    leaves = [Tensor(draw(2, 3, seed=seed), requires_grad=True) for seed in (0, 1)]
    for reduction in ("mean", "none"):
        assert gradcheck(lambda x, t, r=reduction: function(x, t, reduction=r, **options), leaves)
    check_second_along_a_line(lambda x, t: function(x, t, reduction="none", **options), leaves)


@every_pair
def test_what_pairs_refuse(pair: Any) -> None:
    function, module, options, draw = pair
    x = draw(3, 1)
    with pytest.raises(ValueError, match=r"shape \(3, 1\) do not fit targets of shape \(3,\)"):
        function(x, x[:, 0], **options)
    with pytest.raises(ValueError, match="mean of no losses is not defined"):
        function(x[:0], x[:0], **options)
    assert function(x[:0], x[:0], reduction="sum", **options).item() == 0.0
    assert function(x[:0], x[:0], reduction="none", **options).shape == (0, 1)
    with pytest.raises(ValueError, match="reduction is"):
        function(x, x, reduction="max", **options)
    with pytest.raises(ValueError, match="reduction is"):
        module(reduction="max", **options)


def test_forms_that_torch_was_not_asked_for() -> None:
    """The golden tests have torch's values of the others."""
    x, t = probable(3, 4), probable(3, 4, seed=1)
    assert F.smooth_l1_loss(x, t, beta=0.0).item() == F.l1_loss(x, t).item()
    expected = F.kl_div(x, t, reduction="none").data
    found = F.kl_div(x, np.log(t), reduction="none", log_target=True)
    np.testing.assert_allclose(found.data, expected, rtol=1e-12)


def test_weights_of_binary_cross_entropy() -> None:
    x, t, weight = normal(3, 2), probable(3, 2), probable(2, seed=2)
    p = 1 / (1 + np.exp(-x))
    expected = (_bce(p, t) * weight).mean()
    assert F.binary_cross_entropy(p, t, weight).item() == pytest.approx(expected)
    assert F.binary_cross_entropy_with_logits(x, t, weight).item() == pytest.approx(expected)
    assert nn.BCELoss(weight)(p, t).item() == pytest.approx(expected)
    both = -(t * 3 * np.log(p) + (1 - t) * np.log(1 - p)).mean()
    loss = nn.BCEWithLogitsLoss(pos_weight=np.array([3.0, 3.0]))
    assert loss(x, t).item() == pytest.approx(both)
    assert list(loss.state_dict()) == ["pos_weight"]
    leaf = Tensor(x, requires_grad=True)
    assert gradcheck(lambda x: loss(x, t), leaf)


def test_logarithms_of_0_and_far_logits() -> None:
    p = Tensor(np.array([0.0, 1.0, 0.0, 1.0]), requires_grad=True)
    t = np.array([0.0, 1.0, 1.0, 0.0])
    losses = F.binary_cross_entropy(p, t, reduction="none")
    assert losses.data.tolist() == [0.0, 0.0, 100.0, 100.0]
    losses.sum().backward()
    assert p.grad is not None
    assert p.grad.data.tolist() == [0.0, 0.0, -1e12, 1e12]
    x = Tensor(np.array([-1e4, 1e4, 0.0]), requires_grad=True)
    far = F.binary_cross_entropy_with_logits(x, np.array([1.0, 0.0, 0.25]), reduction="sum")
    far.backward()
    assert far.item() == pytest.approx(2e4 + np.log(2))
    assert x.grad is not None
    assert x.grad.data.tolist() == [-1.0, 1.0, 0.25]


def test_gradients_of_targets_at_certain_probabilities() -> None:
    p = np.array([0.0, 1.0, 0.25])
    t = Tensor(np.array([0.0, 1.0, 0.5]), requires_grad=True)
    F.binary_cross_entropy(p, t, reduction="sum").backward()
    assert t.grad is not None
    np.testing.assert_allclose(t.grad.data, [100.0, -100.0, np.log(3)], rtol=1e-12)


def test_half_precision_knows_certain_probabilities() -> None:
    """Of float16, the least p * (1 - p) that the slope is divided by is 0."""
    p = Tensor(np.array([0.0, 1.0, 0.5], np.float16), requires_grad=True)
    t = Tensor(np.array([0.0, 1.0, 0.5], np.float16), requires_grad=True)
    F.binary_cross_entropy(p, t, reduction="sum").backward()
    assert p.grad is not None
    assert t.grad is not None
    assert p.grad.tolist() == [0.0, 0.0, 0.0]
    np.testing.assert_allclose(t.grad.data, [16.6, -16.6, 0.0], rtol=1e-2)


def test_small_losses_of_logits_are_no_differences() -> None:
    x, t = np.array([20.0, -20.0], np.float32), np.array([1.0, 0.0], np.float32)
    losses = F.binary_cross_entropy_with_logits(x, t, reduction="none")
    np.testing.assert_allclose(losses.data, [np.log1p(np.exp(-20.0))] * 2, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_losses_of_logits_and_their_slopes_do_not_cancel(dtype: Any) -> None:
    """Also with `pos_weight`, and where a probability is certain."""
    x = np.array([-40.0, -15.0, -1.0, 2.0, 15.0, 40.0], dtype)
    wide = x.astype(np.float64)
    small, share = np.log1p(np.exp(-np.abs(wide))), 1 / (1 + np.exp(-np.abs(wide)))
    plus = np.where(x > 0, x + small, small)  # softplus(x); softplus(-x) is the other one
    minus = np.where(x > 0, small, small - x)
    rises = np.where(x > 0, share, np.exp(-np.abs(wide)) * share)  # sigmoid(x)
    falls = np.where(x > 0, np.exp(-np.abs(wide)) * share, share)
    for target in (0.0, 1.0, 0.25):
        for factor in (None, 3.0, 0.0):
            w = 1.0 if factor is None else factor
            leaf = Tensor(x, requires_grad=True)
            t = np.full(6, target, dtype)
            how: Any = {"pos_weight": None if factor is None else np.full(6, factor)}
            losses = F.binary_cross_entropy_with_logits(leaf, t, reduction="none", **how)
            losses.sum().backward()
            slope: Any = leaf.grad
            tolerance = 2e-6 if dtype is np.float32 else 1e-14
            exact = target * w * minus + (1 - target) * plus
            np.testing.assert_allclose(losses.data, exact, rtol=tolerance)
            exact = (1 - target) * rises - target * w * falls
            np.testing.assert_allclose(slope.data, exact, rtol=10 * tolerance)


def test_gradients_of_pos_weight_and_targets_of_logits() -> None:
    x, t, w = (Tensor(a, requires_grad=True) for a in (normal(3, 2), probable(3, 2), probable(2)))

    def loss(x: Any, t: Any, w: Any) -> Any:
        return F.binary_cross_entropy_with_logits(x, t, pos_weight=w)

    assert gradcheck(loss, [x, t, w])
    check_second_along_a_line(loss, [x, t, w])


def test_infinite_logits_of_certain_targets() -> None:
    x = Tensor(np.array([np.inf, -np.inf, np.inf, -np.inf]), requires_grad=True)
    t = np.array([1.0, 0.0, 0.0, 1.0])
    for factor in (None, 3.0):
        x.grad = None
        how: Any = {"pos_weight": None if factor is None else np.full(4, factor)}
        losses = F.binary_cross_entropy_with_logits(x, t, reduction="none", **how)
        assert losses.data.tolist() == [0.0, 0.0, np.inf, np.inf]
        losses.sum().backward()
        found: Any = x.grad
        assert found.data.tolist() == [0.0, 0.0, 1.0, -(factor or 1.0)]


def test_a_weight_of_zero_hides_an_infinite_loss() -> None:
    x = Tensor(np.array([np.inf, 0.0]), requires_grad=True)
    loss = F.binary_cross_entropy_with_logits(x, np.zeros(2), np.array([0.0, 1.0]), reduction="sum")
    loss.backward()
    found: Any = x.grad
    assert loss.item() == pytest.approx(np.log(2))
    assert found.data.tolist() == [0.0, 0.5]
    logits = np.array([[0.0, -np.inf], [0.0, 0.0]])
    labels, weight = np.array([1, 0]), np.array([1.0, 0.0])
    loss = F.cross_entropy(logits, labels, weight)
    assert loss.item() == pytest.approx(np.log(2))
    assert F.nll_loss(logits, labels, weight).item() == 0.0


def test_a_class_that_is_masked_counts_nothing_if_its_probability_is_zero() -> None:
    x = Tensor(np.array([[0.0, -np.inf, np.log(3.0)]]), requires_grad=True)
    t = Tensor(np.array([[0.25, 0.0, 0.75]]), requires_grad=True)
    loss = F.cross_entropy(x, t)
    assert loss.item() == pytest.approx(-0.25 * np.log(0.25) - 0.75 * np.log(0.75))
    loss.backward()
    of_x, of_t = (leaf.grad for leaf in (x, t))
    assert of_x is not None
    assert of_t is not None
    np.testing.assert_allclose(of_x.data, np.zeros((1, 3)), atol=1e-15)
    np.testing.assert_allclose(of_t.data, [[np.log(4), 0.0, np.log(4 / 3)]])


@pytest.mark.parametrize("log_target", [False, True])
def test_kl_div_at_a_target_of_zero(log_target: bool) -> None:
    """It is 0 there, whatever the other probability is, and has slopes of 0."""
    with np.errstate(divide="ignore"):
        given = np.log([0.0, 0.0, 0.25]) if log_target else np.array([0.0, 0.0, 0.25])
    x = Tensor(np.array([-np.inf, -1.0, -1.0]), requires_grad=True)
    t = Tensor(given, requires_grad=True)
    losses = F.kl_div(x, t, reduction="none", log_target=log_target)
    np.testing.assert_allclose(losses.data, [0.0, 0.0, 0.25 * (np.log(0.25) + 1)])
    losses.sum().backward()
    of_x, of_t = (leaf.grad for leaf in (x, t))
    assert of_x is not None
    assert of_t is not None
    np.testing.assert_array_equal(of_x.data, [0.0, 0.0, -0.25])
    last = np.log(0.25) + 2
    np.testing.assert_allclose(of_t.data, [0.0, 0.0, last / 4 if log_target else last])


def test_kl_div_of_nothing_and_by_batch() -> None:
    t = np.array([[0.0, 1.0], [0.5, 0.5]])
    x = np.log(np.array([[0.25, 0.75], [0.5, 0.5]]))
    assert F.kl_div(x, t, reduction="batchmean").item() == pytest.approx(-np.log(0.75) / 2)
    assert nn.KLDivLoss(reduction="batchmean")(x, t).item() == pytest.approx(-np.log(0.75) / 2)


# -- labels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_weights_ignored_labels_and_smoothing(
    smoothing: float, weighted: bool, reduction: str
) -> None:
    x, labels = normal(4, 3, 2), np.array([[0, -1], [2, 1], [-1, 1], [0, 2]])
    weight = np.array([0.5, 1.0, 2.0]) if weighted else np.ones(3)
    logarithms = x - np.log(np.exp(x).sum(1, keepdims=True))
    losses, total = np.zeros(labels.shape), 0.0
    for i, j in np.ndindex(*labels.shape):
        label = labels[i, j]
        if label == -1:
            continue
        right = -weight[label] * logarithms[i, label, j]
        even = -(weight * logarithms[i, :, j]).sum() / 3
        losses[i, j] = (1 - smoothing) * right + smoothing * even
        total += weight[label]
    expected = {"mean": losses.sum() / total, "sum": losses.sum(), "none": losses}[reduction]
    options: dict[str, Any] = {"ignore_index": -1, "reduction": reduction}
    given = weight if weighted else None
    found = F.cross_entropy(x, labels, given, label_smoothing=smoothing, **options)
    np.testing.assert_allclose(found.data, expected, rtol=1e-12)
    module = nn.CrossEntropyLoss(given, label_smoothing=smoothing, **options)
    np.testing.assert_allclose(module(Tensor(x), labels).data, expected, rtol=1e-12)
    assert list(module.state_dict()) == ["weight"] * weighted
    assert gradcheck(lambda x: module(x, labels), Tensor(x, requires_grad=True))
    if not smoothing:
        again = nn.NLLLoss(given, **options)(logarithms, labels)
        np.testing.assert_allclose(again.data, expected, rtol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_an_ignored_loss_may_be_infinite(smoothing: float, reduction: str) -> None:
    """A row that pads a batch is computed as if its label were 0, which may be masked."""
    x = Tensor(np.array([[-np.inf, 1.0], [1.0, 2.0]]), requires_grad=True)
    losses = F.cross_entropy(x, np.array([-100, 1]), label_smoothing=smoothing, reduction=reduction)
    alone = F.cross_entropy(x.data[1:], np.array([1]), label_smoothing=smoothing, reduction="sum")
    assert losses.sum().item() == alone.item()
    losses.sum().backward()
    assert x.grad is not None
    assert x.grad.data[0].tolist() == [0.0, 0.0]
    assert F.nll_loss(x, np.array([-100, 1]), reduction=reduction).sum().item() == -2.0


LABELS = np.array([0, -1, 2])
ROWS = np.array([True, False, True])
ITEMS = np.array([[True, True, False], [False, True, True], [True, False, True]])
TARGETS = np.array([[1.0, 0.0, 0.3], [0.2, 1.0, 0.0], [0.0, 1.0, 0.5]])
SHARES = np.where(ROWS[:, None], [0.5, 0.5, 0.0], 0.0)
CLASSES = np.array([0.5, 0.0, 2.0])
# A loss of x, and a mask of the items or rows that count.
MASKED: dict[str, tuple[Any, Any]] = {
    **{
        f"cross entropy, weighted {weight is not None}, smoothed by {smoothing}": (
            lambda x, how, weight=weight, smoothing=smoothing: F.cross_entropy(
                x, LABELS, weight, ignore_index=-1, label_smoothing=smoothing, reduction=how
            ),
            ROWS[:, None],
        )
        for weight in (None, CLASSES)
        for smoothing in (0.0, 0.2)
    },
    "cross entropy of a class without weight": (
        lambda x, how: F.cross_entropy(x, np.array([0, 1, 2]), CLASSES, reduction=how),
        ROWS[:, None],
    ),
    "cross entropy of shares": (
        lambda x, how: F.cross_entropy(x, SHARES, reduction=how),
        ROWS[:, None],
    ),
    "the operation": (
        lambda x, _: ops.cross_entropy(x, LABELS, ignored=-1),
        ROWS[:, None],
    ),
    "its mean": (
        lambda x, _: ops.mean_cross_entropy(x, LABELS, ignored=-1)[0],
        ROWS[:, None],
    ),
    "nll": (
        lambda x, how: F.nll_loss(x, LABELS, ignore_index=-1, reduction=how),
        ROWS[:, None],
    ),
    "bce": (
        lambda x, how: F.binary_cross_entropy(x, TARGETS, ITEMS, reduction=how),
        ITEMS,
    ),
    "logits": (
        lambda x, how: F.binary_cross_entropy_with_logits(
            x, TARGETS, ITEMS, pos_weight=CLASSES, reduction=how
        ),
        ITEMS,
    ),
    "bce of targets": (
        lambda x, how: F.binary_cross_entropy(
            np.full((3, 3), 0.4), np.where(ITEMS, x, x.data), ITEMS, reduction=how
        ),
        ITEMS,
    ),
    "kl": (lambda x, how: F.kl_div(x, np.where(ITEMS, TARGETS, 0.0), reduction=how), ITEMS),
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("kind", MASKED)
def test_what_does_not_count_may_be_anything(kind: str, reduction: str) -> None:
    """Slopes of ignored rows, and of items without weight, were NaN: 0 times a slope that is."""
    loss, mask = MASKED[kind]

    def of(item: float) -> list[Any]:
        x = Tensor(np.where(mask, probable(3, 3), item), requires_grad=True)
        y = loss(x, reduction)
        (slope,) = grad([(y * y).sum()], [x], create_graph=True)
        (bend,) = grad([(slope * slope).sum()], [x])
        return [y.data, slope.data, bend.data]

    expected = of(0.5)
    assert not expected[1][~np.broadcast_to(mask, (3, 3))].any()
    for item in (np.nan, np.inf, -np.inf):
        with np.errstate(invalid="ignore"):  # by the operation, which computes ignored rows, too
            several = of(item)
        for found, exact in zip(several, expected, strict=True):
            np.testing.assert_allclose(found, exact, rtol=1e-12, err_msg=f"{item}")


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_weights_of_classes_may_need_a_gradient(reduction: str) -> None:
    labels = np.array([0, 2, -100, 2])
    leaves = [Tensor(normal(4, 3), requires_grad=True), Tensor(probable(3), requires_grad=True)]
    for smoothing in (0.0, 0.2):

        def smooth(x: Any, w: Any, smoothing: float = smoothing) -> Any:
            return F.cross_entropy(x, labels, w, reduction=reduction, label_smoothing=smoothing)

        assert gradcheck(smooth, leaves)
    assert gradcheck(lambda x, w: F.nll_loss(x, labels, w, reduction=reduction), leaves)


def test_a_weighted_mean_in_half_precision() -> None:
    """Ten thousand losses of 11 add up to more than float16 holds."""
    x = np.tile(np.array([[11.0, 0.0]], np.float16), (10_000, 1))
    labels = np.ones(10_000, np.int64)
    labels[0] = -100
    loss = F.cross_entropy(x, labels)
    assert loss.dtype == np.float16
    assert loss.item() == pytest.approx(11.0, rel=1e-3)


def test_probabilities_as_targets() -> None:
    x, t = normal(3, 4, 2), probable(3, 4, 2)
    weight = np.array([1.0, 2.0, 0.5, 1.5])
    logarithms = x - np.log(np.exp(x).sum(1, keepdims=True))
    smooth = t * 0.8 + 0.2 / 4
    expected = -(smooth * weight[:, None] * logarithms).sum(1)
    for reduction in REDUCTIONS:
        found = F.cross_entropy(x, t, weight, label_smoothing=0.2, reduction=reduction)
        np.testing.assert_allclose(found.data, reduced(expected, reduction), rtol=1e-12)
    leaves = [Tensor(x, requires_grad=True), Tensor(t, requires_grad=True)]
    assert gradcheck(lambda x, t: F.cross_entropy(x, t, label_smoothing=0.2), leaves)


def test_one_row_of_logits() -> None:
    x = normal(3)
    expected = np.log(np.exp(x).sum()) - x[1]
    assert F.cross_entropy(x, np.array(1)).item() == pytest.approx(expected)
    assert F.nll_loss(x, np.array(1)).item() == pytest.approx(-x[1])


def test_far_logits() -> None:
    x = Tensor(np.array([[1e4, 0.0], [0.0, 1e4]], np.float32), requires_grad=True)
    loss = F.cross_entropy(x, np.array([1, 1]), reduction="sum", label_smoothing=0.5)
    loss.backward()
    assert loss.item() == pytest.approx(0.75 * 1e4 + 0.25 * 1e4)
    assert loss.dtype == np.float32
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.data, [[0.75, -0.75], [-0.25, 0.25]])


def test_what_labels_are_refused() -> None:
    x, labels = normal(3, 4), np.array([0, 1, 2])
    for function in (F.cross_entropy, F.nll_loss):
        with pytest.raises(TypeError, match="labels are integers"):
            function(x, labels.astype(float))
        for wrong, words in [
            (labels[:2], r"got \(3, 4\) and \(2,\)"),
            (labels + 2, r"labels from 2 to 4 with logits for 4 classes \(0 to 3\)"),
            (labels - 1, "labels from -1 to 1"),
            (labels * 0 - 100, "every label is ignored"),
        ]:
            with pytest.raises(ValueError, match=words):
                function(x, wrong)
        with pytest.raises(ValueError, match=r"weight has shape \(3,\), \(4,\) needed"):
            function(x, labels, np.ones(3))
        with pytest.raises(ValueError, match="no rows"):
            function(x[:0], labels[:0])
        assert function(x[:0], labels[:0], reduction="sum").item() == 0.0
    with pytest.raises(ValueError, match="label_smoothing is from 0 to 1"):
        F.cross_entropy(x, labels, label_smoothing=1.5)
    with pytest.raises(ValueError, match="delta must be positive"):
        F.huber_loss(x, x, delta=0.0)
    with pytest.raises(ValueError, match="beta must not be negative"):
        F.smooth_l1_loss(x, x, beta=-1.0)


def test_a_loss_has_the_dtype_of_the_outputs() -> None:
    x = Tensor(probable(3, 4).astype(np.float32), requires_grad=True)
    labels, each = np.array([0, 1, 2]), np.ones(4)
    hot = np.eye(4)[labels]
    losses: list[Any] = [
        *[
            make(x, targets)
            for make in (function for function, *_ in PAIRS.values())
            for targets in (hot, hot.astype(int), Tensor(hot), hot.tolist())
        ],
        F.binary_cross_entropy(x, hot, each),
        F.binary_cross_entropy_with_logits(x, hot, each, pos_weight=each),
        F.kl_div(x, hot),
        F.cross_entropy(x, hot, each, label_smoothing=0.1),
        F.cross_entropy(x, labels, each, label_smoothing=0.1),
        F.nll_loss(x, labels, each),
    ]
    for loss in losses:
        assert loss.dtype == np.float32
        loss.backward()
    assert x.grad is not None
    assert F.mse_loss(np.array([1, 2]), np.array([0.5, 1.5])).item() == 0.25
