"""Fourier transforms: what is refused, and what the samples cannot say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import telegrad.numpy as tnp
from telegrad.autograd import Tensor, tensor
from tests.autograd.samples.sample import of_shape


def leaf(x: Any) -> Any:
    return Tensor(x, requires_grad=True)


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_there_and_back(n: int) -> None:
    x = leaf(of_shape((n,), -1.0, 1.0))
    y: Any = np.fft.irfft(np.fft.rfft(x), n)
    y.backward(np.arange(float(n)))
    np.testing.assert_allclose(x.grad.data, np.arange(float(n)), atol=1e-13)


def test_lengths_and_axes_agree() -> None:
    x = leaf(np.ones((2, 3)))
    function: Any
    for function in (np.fft.rfftn, np.fft.irfftn, np.fft.fftn):
        with pytest.raises(ValueError, match="s has 1 lengths for 2 axes"):
            function(x, (2,), (0, 1))
        with pytest.raises(IndexError, match="axis 2 is out of bounds for array of dimension 2"):
            function(x, axes=(0, 2))
    wrong: Any = "wrong"
    for function in (np.fft.hfft, np.fft.ihfft, np.fft.rfftn):
        with pytest.raises(ValueError, match="Invalid norm value wrong"):
            function(x, norm=wrong)


def test_frequencies_are_numpys() -> None:
    np.testing.assert_array_equal(tnp.fft.fftfreq(5, 0.1), np.fft.fftfreq(5, 0.1))
    np.testing.assert_array_equal(tnp.fft.rfftfreq(5), np.fft.rfftfreq(5))
    assert tensor(np.fft.fftfreq(4)).dtype == np.float64
