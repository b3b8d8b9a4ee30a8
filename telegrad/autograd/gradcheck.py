"""Comparison of gradients with finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from telegrad.arrays import namespace, to_host
from telegrad.autograd.differentiate import grad
from telegrad.autograd.graph.grad_mode import no_grad
from telegrad.autograd.tensor.row_sparse import is_row_sparse
from telegrad.autograd.tensor.tensor import Tensor
from telegrad.errors import AutogradError

_STEP = 1e-6  # near the cube root of float64's precision, which balances both errors
_ATOL = 1e-6
_RTOL = 1e-4
_SEED = 20


def gradcheck(
    func: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    *,
    step: float = _STEP,
    atol: float = _ATOL,
    rtol: float = _RTOL,
) -> bool:
    """Compares the gradients of `func` at `inputs` with central differences.

    The outputs are weighted with fixed random numbers, so that one backward checks all of them.

    Args:
        func: A function of the inputs that returns a Tensor or a tuple of them; called many times.
        inputs: The inputs; those that need a gradient must be float64 or complex128, and away from
            kinks.
        step: The distance by which each item is moved.
        atol: The allowed absolute error.
        rtol: The allowed relative error.

    Returns:
        True.

    Raises:
        AutogradError: A gradient is wrong, an input is of another dtype, or no input needs a
            gradient.

    >>> from telegrad.autograd import tensor
    >>> gradcheck(lambda x: x * x, tensor([1.0, 2.0], requires_grad=True))
    True
    """
    given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    checked = [i for i, x in enumerate(given) if isinstance(x, Tensor) and x.requires_grad]
    if not checked:
        raise AutogradError("gradcheck needs an input that needs a gradient")
    for i in checked:
        if given[i].dtype not in (np.float64, np.complex128):
            raise AutogradError(
                f"gradcheck needs float64 or complex128 inputs, input {i} is {given[i].dtype}: "
                "finite differences need that precision"
            )
    outputs = _outputs(func(*given))
    weights = _weights(outputs)
    found = grad(
        [y for y in outputs if y.requires_grad],
        [given[i] for i in checked],
        [w for y, w in zip(outputs, weights, strict=True) if y.requires_grad],
        allow_unused=True,
    )
    for i, gradient in zip(checked, found, strict=True):
        numeric = _differences(func, given, i, weights, step)
        whole = gradient.to_dense() if is_row_sparse(gradient) else getattr(gradient, "data", None)
        analytic = np.zeros_like(numeric) if whole is None else to_host(whole)
        if not np.allclose(analytic, numeric, atol=atol, rtol=rtol):
            raise AutogradError(
                f"the gradient of input {i} is wrong by up to "
                f"{np.max(np.abs(analytic - numeric)):.3g}\nrule:        {analytic}\n"
                f"differences: {numeric}"
            )
    return True


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    *,
    step: float = _STEP,
    atol: float = _ATOL,
    rtol: float = _RTOL,
) -> bool:
    """Compares the second derivatives of `func` at `inputs` with differences of the first.

    It differentiates the gradients with respect to the inputs and to the incoming gradient.
    Arguments, result and errors are those of `gradcheck`.

    >>> x = Tensor(np.array([1.0, 2.0]), requires_grad=True)
    >>> gradgradcheck(lambda x: x**3, [x])
    True
    """
    given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    checked = [i for i, x in enumerate(given) if isinstance(x, Tensor) and x.requires_grad]
    outputs = _outputs(func(*given))
    weights = [Tensor(w, requires_grad=True) for w in _weights(outputs)]

    def first(*args: Any) -> tuple[Tensor, ...]:
        arguments, gradients = args[: len(given)], args[len(given) :]
        results = _outputs(func(*arguments))
        found = grad(
            results,
            [arguments[i] for i in checked],
            list(gradients),
            create_graph=True,
            allow_unused=True,
        )
        return tuple(g for g in found if g is not None)

    return gradcheck(first, [*given, *weights], step=step, atol=atol, rtol=rtol)


def _outputs(returned: Any) -> list[Tensor]:
    return [returned] if isinstance(returned, Tensor) else list(returned)


def _weights(outputs: Sequence[Tensor]) -> list[Any]:
    generator = np.random.default_rng(_SEED)
    weights = []
    for y in outputs:
        weight = generator.uniform(0.5, 1.5, y.shape)
        if y.dtype.kind == "c":
            weight = weight + 1j * generator.uniform(-0.5, 0.5, y.shape)
        weights.append(namespace(y.data).asarray(weight, dtype=y.dtype))
    return weights


def _differences(
    func: Callable[..., Any], inputs: Sequence[Any], i: int, weights: Sequence[Any], step: float
) -> Any:
    original = to_host(inputs[i].data)
    slopes = np.zeros(original.shape, dtype=original.dtype)
    directions = (1, 1j) if original.dtype.kind == "c" else (1,)
    for index in np.ndindex(original.shape):
        for direction in directions:
            ends = []
            for sign in (1, -1):
                moved = np.array(original)
                moved[index] += sign * step * direction
                ends.append(_weighted(func, inputs, i, moved, weights))
            slopes[index] += direction * (ends[0] - ends[1]) / (2 * step)
    return slopes


def _weighted(
    func: Callable[..., Any], inputs: Sequence[Any], i: int, moved: Any, weights: Sequence[Any]
) -> float:
    # Recorded, although no backward follows: `func` may itself compute gradients.
    moved = namespace(inputs[i].data).asarray(moved)
    outputs = _outputs(func(*inputs[:i], Tensor(moved, requires_grad=True), *inputs[i + 1 :]))
    with no_grad():
        parts = [
            float(np.real((np.conjugate(y) * w).sum()).data)
            for y, w in zip(outputs, weights, strict=True)
        ]
    return sum(parts)
