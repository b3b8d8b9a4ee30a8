"""Decompositions, Fourier transforms, padding and what else is made of them, on CuPy's arrays.

Values and gradients are NumPy's, second gradients those of differences. On NumPy's arrays the
samples of the rules prove as much.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from telegrad.autograd import Tensor, gradgradcheck
from tests.autograd.finite_differences import check_second_along_a_line
from tests.autograd.samples.decompositions import complex_matrix, matrix
from tests.autograd.samples.linear_systems import hermitian
from tests.autograd.samples.sample import complex_numbers, of_shape
from tests.gpu.comparison import close, moved

LINE, TABLE, Z = of_shape((5,), -1.0, 1.0), of_shape((3, 4), -1.0, 1.0), complex_numbers((4,))
KNOTS = np.array([0.0, 0.4, 1.0, 1.3])


def projection(x: Any) -> Any:
    return x @ np.conjugate(np.swapaxes(x, -1, -2))


def of_eigh(a: Any) -> Any:
    values, vectors = np.linalg.eigh(hermitian(a))
    return values, projection(vectors[..., :1])


def of_svd(a: Any) -> Any:
    u, s, vh = np.linalg.svd(a, full_matrices=False)
    return (u * np.sqrt(s)[..., None, :]) @ vh, s


CALLS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "eigh": (of_eigh, [matrix(3, 3)]),
    "eigh of complex numbers": (of_eigh, [complex_matrix(2, 2)]),
    "eigvalsh": (lambda a: np.linalg.eigvalsh(hermitian(a)), [matrix(2, 2, 2)]),
    "svd": (of_svd, [matrix(3, 2)]),
    "svd of complex numbers": (of_svd, [complex_matrix(2, 2)]),
    "qr": (np.linalg.qr, [matrix(3, 2)]),
    "qr, wide": (np.linalg.qr, [matrix(2, 3)]),
    "pinv": (np.linalg.pinv, [complex_matrix(3, 2)]),
    "lstsq": (lambda a, b: np.linalg.lstsq(a, b)[0], [matrix(3, 2), LINE[:3]]),
    "fft": (lambda a: np.fft.fft(a, 6, norm="ortho"), [LINE]),
    "rfft": (lambda a: np.fft.rfft(a, axis=0), [TABLE]),
    "irfft": (np.fft.irfft, [Z]),
    "hfft": (lambda a: np.fft.hfft(a, 5), [Z]),
    "ifft2": (lambda a: np.fft.ifft2(a, (2, 5)), [TABLE]),
    "irfftn": (np.fft.irfftn, [TABLE]),
    "fftshift": (np.fft.fftshift, [TABLE]),
    "angle": (np.angle, [Z]),
    "abs": (np.absolute, [Z]),
    "sign": (np.sign, [Z]),
    "pad": (lambda a: np.pad(a, 1), [TABLE]),
    "pad, edge": (lambda a: np.pad(a, (2, 1), "edge"), [TABLE]),
    "pad, reflect": (lambda a: np.pad(a, 7, "reflect"), [LINE]),
    "pad, odd": (lambda a: np.pad(a, 7, "symmetric", reflect_type="odd"), [LINE]),
    "pad, linear_ramp": (lambda a: np.pad(a, 1, "linear_ramp"), [TABLE]),
    "pad, mean": (lambda a: np.pad(a, 1, "mean"), [TABLE]),
    "convolve": (lambda a, b: np.convolve(a, b, "same"), [LINE, Z[:2]]),
    "correlate": (lambda a, b: np.correlate(a, b, "full"), [LINE, Z[:2]]),
    "interp": (np.interp, [LINE, KNOTS, of_shape((4,))]),
    "gradient": (lambda a, b: np.gradient(a, b, axis=1), [TABLE, KNOTS]),
    "polyval": (np.polyval, [LINE[:3], TABLE[:2]]),
    "polymul": (np.polymul, [LINE, Z[:2]]),
    "polyint": (np.polyint, [LINE]),
    "cov": (np.cov, [TABLE]),
    "i0": (np.i0, [LINE]),
}


def outputs(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


@pytest.mark.parametrize("name", CALLS)
def test_a_call(cupy: Any, name: str, subtests: pytest.Subtests) -> None:
    function, arrays = CALLS[name]
    here = [Tensor(x, requires_grad=True) for x in arrays]
    there: list[Any] = [moved(cupy, x) for x in here]
    with subtests.test("values"):
        for ours, theirs in zip(outputs(function(*there)), outputs(function(*here)), strict=True):
            close(ours, theirs)
            ours.backward(cupy.ones(ours.shape), retain_graph=True)
            theirs.backward(np.ones(theirs.shape), retain_graph=True)
    with subtests.test("gradients"):
        for x, y in zip(there, here, strict=True):
            close(x.grad, y.grad)
    with subtests.test("second gradients"):
        check_second_along_a_line(function, there)


@pytest.mark.long
@pytest.mark.parametrize("name", CALLS)
def test_each_item_of_the_second_gradient(cupy: Any, name: str) -> None:
    function, arrays = CALLS[name]
    inputs = [moved(cupy, Tensor(x, requires_grad=True)) for x in arrays]
    assert gradgradcheck(function, inputs)
