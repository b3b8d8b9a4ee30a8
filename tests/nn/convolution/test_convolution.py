"""Convolution against loops, and what it refuses; the golden tests have second gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad import nn
from telegrad.autograd import Tensor, gradcheck
from telegrad.kernels import Windows, convolution
from tests.nn.reference import convolved

F = nn.functional

# Of the image, of the filters, stride, padding, dilation, groups.
CASES: list[tuple[Any, ...]] = [
    ((2, 3, 5, 4), (4, 3, 3, 2), 1, 0, 1, 1),
    ((2, 4, 6, 5), (6, 2, 3, 2), (2, 1), (1, 2), (1, 2), 2),
    ((1, 3, 4, 4), (3, 1, 2, 2), 1, 1, 1, 3),
    ((2, 2, 5, 5), (3, 2, 1, 1), 1, 0, 1, 1),
    ((2, 2, 5, 5), (3, 2, 1, 1), 2, 0, 1, 1),
    ((1, 1, 3, 3), (2, 1, 3, 3), 1, 0, 1, 1),
    ((1, 1, 7, 6), (1, 1, 2, 2), 3, 2, 2, 1),
    ((1, 1, 2, 2), (1, 1, 2, 2), 1, 3, 1, 1),
    ((0, 2, 4, 4), (3, 2, 2, 2), 1, 0, 1, 1),
]


def both(x: Any) -> tuple[int, int]:
    return (x, x) if isinstance(x, int) else tuple(x)


def arrays(image: Any, filters: Any, seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=image), rng.normal(size=filters), rng.normal(size=filters[0])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_what_loops_find(case: Any) -> None:
    image, filters, stride, padding, dilation, groups = case
    leaves = [Tensor(a, requires_grad=True) for a in arrays(image, filters)]
    sides = [(p, p) for p in both(padding)]

    def call(x: Any, weight: Any, bias: Any = None) -> Any:
        return F.conv2d(x, weight, bias, stride, padding, dilation, groups)

    for given in (leaves[:2], leaves):
        x, weight, shift = [leaf.data for leaf in given] + [None] * (3 - len(given))
        expected = convolved(x, weight, shift, both(stride), sides, both(dilation), groups)
        found = call(*given)
        np.testing.assert_allclose(found.data, expected, rtol=1e-12, atol=1e-12)
        assert found.shape == expected.shape
    assert gradcheck(call, leaves)


def test_images_are_computed_in_groups_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = arrays((5, 2, 6, 6), (3, 2, 3, 3))
    results = []
    for size in (1, 6000, 1 << 30):  # one image at a time, two or three, all
        monkeypatch.setattr(convolution, "_HOST_BYTES", size)
        leaves = [Tensor(a, requires_grad=True) for a in (x, weight, bias)]
        y = F.conv2d(leaves[0], leaves[1], leaves[2], padding=1)
        (y * y).sum().backward()
        results.append([y, *(leaf.grad for leaf in leaves)])
    for other in results[1:]:
        for one, same in zip(results[0], other, strict=True):
            assert one is not None
            assert same is not None
            np.testing.assert_allclose(one.data, same.data, rtol=1e-12)


def test_same_and_valid() -> None:
    x, weight, _ = arrays((1, 2, 5, 6), (3, 2, 2, 4))
    same = F.conv2d(x, weight, padding="same", dilation=(2, 1))
    assert same.shape == (1, 3, 5, 6)
    # The odd column is at the end, as in PyTorch.
    expected = convolved(x, weight, None, (1, 1), ((1, 1), (1, 2)), (2, 1), 1)
    np.testing.assert_allclose(same.data, expected, rtol=1e-12)
    valid = F.conv2d(x, weight, padding="valid")
    np.testing.assert_array_equal(valid.data, F.conv2d(x, weight).data)


def test_views() -> None:
    x, weight, bias = arrays((5, 6, 2, 3), (4, 3, 2, 2))
    turned = x.transpose(2, 3, 0, 1)[:, :, ::-1]
    expected = convolved(turned, weight, bias, (1, 1), ((0, 0), (0, 0)), (1, 1), 1)
    np.testing.assert_allclose(F.conv2d(turned, weight, bias).data, expected, rtol=1e-12)


def test_windows_count_as_ranges_do() -> None:
    """Every choice of small numbers, against the places that a range names."""
    for length, size, stride, before, after, gap in np.ndindex(6, 3, 3, 3, 3, 2):
        size, stride, gap = size + 1, stride + 1, gap + 1
        last = length + before + after - gap * (size - 1)
        starts = range(-before, last - before, stride) if last > 0 else range(0)
        windows = Windows((size, 1), (stride, 1), ((before, after), (0, 0)), (gap, 1))
        if not len(starts):
            with pytest.raises(ValueError, match="does not fit"):
                windows.counts((length, 1))
            continue
        assert windows.counts((length, 1)) == (len(starts), 1)
        hit = {
            (window, place): start + place * gap
            for window, start in enumerate(starts)
            for place in range(size)
            if 0 <= start + place * gap < length
        }
        found: dict[tuple[int, int], int] = {}
        for part in windows.parts((length, 1)):
            items = range(length)[part.inside[1]]
            counted = range(len(starts))[part.windows[1]]
            found |= {(w, part.place): i for w, i in zip(counted, items, strict=True)}
        assert found == hit


def test_modules() -> None:
    rng = np.random.default_rng(0)
    layer = nn.Conv2d(4, 6, (3, 2), 2, 1, groups=2, dtype=np.float64, rng=rng)
    bound = 1 / np.sqrt(12)
    assert np.abs(layer.weight.data).max() <= bound
    assert repr(layer) == "Conv2d(4, 6, (3, 2), stride=2, padding=1, groups=2)"
    plain = nn.Conv1d(2, 3, 3, padding="same", bias=False)
    assert plain(np.zeros((2, 2, 5), np.float32)).shape == (2, 3, 5)
    assert repr(plain) == "Conv1d(2, 3, 3, padding='same', bias=False)"


def test_what_it_refuses() -> None:
    x, weight, bias = arrays((1, 4, 3, 3), (2, 4, 2, 2))
    for options, words in [
        ({"stride": 0}, "stride is one integer or two, at least 1; got 0"),
        ({"padding": (1, 2, 3)}, "padding is one integer or two"),
        ({"padding": "full"}, "'same' or 'valid', not 'full'"),
        ({"padding": "same", "stride": 2}, "needs a stride of 1"),
        ({"dilation": 3}, "does not fit into 3 by 3"),
        ({"groups": 2}, "4 channels and 2 filters of 4 channels do not fit 2 groups"),
        ({"bias": bias[:1]}, r"bias has shape \(1,\), \(2,\) needed"),
    ]:
        with pytest.raises(ValueError, match=words):
            F.conv2d(x, weight, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"not \(4,\) and"):
        F.conv2d(np.zeros(4), weight)
    with pytest.raises(ValueError, match="do not divide into 2 groups"):
        nn.Conv2d(3, 4, 3, groups=2)
    with pytest.raises(ValueError, match="floating-point"):
        nn.Conv2d(3, 4, 3, dtype=np.int64)
    with pytest.raises(ValueError, match="kernel_size"):
        nn.Conv2d(3, 4, 0)
