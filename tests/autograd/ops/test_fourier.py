"""Fourier transforms: what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad.autograd import Tensor


def leaf(x: Any) -> Any:
    return Tensor(x, requires_grad=True)


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
