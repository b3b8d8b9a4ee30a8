"""A module's call as a function of its parameters, for `gradcheck`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from telegrad import nn
from telegrad.autograd import Tensor

__all__ = ["as_function", "close", "normal"]


def as_function(
    module: nn.Module, call: Callable[..., Any]
) -> tuple[Callable[..., Any], list[Tensor]]:
    """Returns `call(*inputs)` as a function of inputs and parameters, and these parameters."""
    places = [
        (owner, name)
        for owner in module.modules()
        for name, _ in owner.named_parameters()
        if "." not in name
    ]
    parameters: list[Tensor] = [getattr(owner, name) for owner, name in places]

    def function(*given: Tensor) -> Any:
        own = given[len(given) - len(places) :]
        for (owner, name), parameter in zip(places, own, strict=True):
            object.__setattr__(owner, name, parameter)
        return call(*given[: len(given) - len(places)])

    return function, parameters


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def close(found: Any, expected: Any, tolerance: float = 1e-12) -> None:
    left = found.data if isinstance(found, Tensor) else found
    right = expected.data if isinstance(expected, Tensor) else expected
    np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance)
