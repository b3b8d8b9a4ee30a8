"""The parameters of NumPy functions and of operations: names, order and defaults, as in NumPy.

They are read at the first use: at import, this would take longer than the whole table of rules.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, final

import numpy as np

from telegrad.autograd.graph.grad_mode import ENABLED
from telegrad.autograd.tensor.tensor import Tensor
from telegrad.errors import AutogradError


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """Returns the signature of `function`; None if neither `inspect` nor the ufunc gives one.

    Ufuncs have a signature of their own only since NumPy 2.4.

    >>> str(signature_of(np.cumsum))
    '(a, axis=None, dtype=None, out=None)'
    """
    try:
        return inspect.signature(function)
    except ValueError:
        return _of_ufunc(function) if isinstance(function, np.ufunc) else None


def positional_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the names of the parameters of `function` that may be positional, in order.

    >>> positional_names(np.sum)[:3]
    ('a', 'axis', 'dtype')
    """
    found = signature_of(function)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = () if found is None else found.parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind in kinds)


def _of_ufunc(function: np.ufunc) -> inspect.Signature:
    kind = inspect.Parameter
    names = ["x"] if function.nin == 1 else [f"x{i + 1}" for i in range(function.nin)]
    inputs = [kind(name, kind.POSITIONAL_ONLY) for name in names]
    out = None if function.nout == 1 else (None,) * function.nout
    options: dict[str, Any] = {"casting": "same_kind", "order": "K", "dtype": None}
    options |= {"subok": True, "signature": None}
    if function.signature is None:
        options = {"where": True, **options}
    return inspect.Signature([
        *inputs,
        kind("out", kind.POSITIONAL_OR_KEYWORD, default=out),
        *(kind(name, kind.KEYWORD_ONLY, default=value) for name, value in options.items()),
    ])  # fmt: skip


# -- the parameters of an operation --------------------------------------------------------------


@final
class Parameters:
    """The parameters of an operation, which sort the arguments of a call.

    Args:
        name: The name of the operation, for messages.
        forward: The function over arrays.
        arguments: The names of its leading array arguments, `a b`; `*parts` for any number.
        arrays: The names of options that are arrays too.
        options: The defaults of its other options.

    Attributes:
        name: The name of the operation.
        arrays: The names of the leading arguments.
        variadic: True if the operation takes any number of arrays.
        count: The number of leading arguments; -1 if it is variadic.
        optional: The names of options that are arrays.
        options: The defaults of its other options.
    """

    def __init__(
        self,
        name: str,
        forward: Callable[..., Any],
        arguments: str,
        arrays: str,
        options: Mapping[str, Any] | None,
    ) -> None:
        self.name = name
        self._forward = forward
        self.variadic = arguments.startswith("*")
        self.arrays = tuple(arguments.lstrip("*").split())
        self.count = -1 if self.variadic else len(self.arrays)
        self.optional = tuple(arrays.split())
        self.options = dict(options or {})

    @cached_property
    def signature(self) -> inspect.Signature | None:
        """The signature of the function, if it has one."""
        return signature_of(self._forward)

    @cached_property
    def _positional(self) -> tuple[str, ...]:
        return positional_names(self._forward)

    def bind(
        self, inputs: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], tuple[str, ...], dict[str, Any]]:
        """Sorts the arguments of a call, as NumPy would, into arrays, their names, and options.

        Raises:
            TypeError: There are too many or too few arguments, or an option has no rule.
            AutogradError: An option that needs a gradient has no rule.
        """
        if self.variadic:
            self._check_options(keywords)
            return inputs, self.arrays * len(inputs), keywords
        count = self.count
        if len(inputs) > count:
            names = self._positional[count:]
            given = inputs[count:]
            if len(given) > len(names):
                raise self._wrong_number(inputs)
            keywords = {**dict(zip(names, given, strict=False)), **keywords}
            inputs = inputs[:count]
        missing = self.arrays[len(inputs) :]
        if not all(name in keywords for name in missing):
            raise self._wrong_number(inputs)
        optional = tuple([name for name in self.optional if keywords.get(name) is not None])
        arrays = (*inputs, *(keywords[name] for name in (*missing, *optional)))
        taken = {*missing, *self.optional}
        options = {name: x for name, x in keywords.items() if name not in taken}
        return arrays, (*self.arrays, *optional), self._check_options(options)

    def _wrong_number(self, inputs: tuple[Any, ...]) -> TypeError:
        return TypeError(f"{self.name} takes {self.count} arguments, {len(inputs)} were given")

    def _check_options(self, given: dict[str, Any]) -> dict[str, Any]:
        options = {}
        for name, x in given.items():
            if isinstance(x, Tensor):
                if x.requires_grad and ENABLED.get():
                    raise self.no_gradient(name)
                x = x.data
            if name in self.options:
                options[name] = x
            elif not self._is_default(name, x):
                raise TypeError(f"{self.name} of tensors does not take {name}")
        return options

    def _is_default(self, name: str, x: Any) -> bool:
        signature = self.signature
        parameter = None if signature is None else signature.parameters.get(name)
        return (
            parameter is not None and type(x) in (bool, str, type(None)) and x == parameter.default
        )

    def no_gradient(self, *names: str) -> AutogradError:
        """Returns the error for arguments or options that need a gradient and have no rule."""
        return AutogradError(
            f"{self.name} has no gradient with respect to {', '.join(names)}; pass t.detach()"
        )
