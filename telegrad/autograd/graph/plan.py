"""`Plan`: the values that one recorded call keeps and the rules that its backward runs.

There is one plan for each operation and each choice of inputs that need a gradient:

    multiply(a, b), both need one     keeps b and a; runs the rules of a and of b
    multiply(a, b), only a does       keeps b; runs the rule of a
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from telegrad.arrays import as_array, computing_dtype
from telegrad.autograd.graph.node import Edge
from telegrad.autograd.tensor.row_sparse import is_row_sparse
from telegrad.autograd.tensor.tensor import Tensor
from telegrad.errors import AutogradError
from telegrad.types import Shape


class Rule(NamedTuple):
    """The gradient of one argument.

    Attributes:
        function: The rule, called with the gradient and then with the values that `needs` names.
        needs: Names of arguments, outputs and options, `shape`, `shapes` or `i`.
    """

    function: Callable[..., Any]
    needs: tuple[str, ...]


Need: TypeAlias = "int | str"
"""The index of a saved value, or the name of a value that is not saved."""


RuleOfInput: TypeAlias = "tuple[int, Callable[..., Any], tuple[Need, ...], bool]"
"""A rule that a backward runs: (input, function, needs, saved).

`input` is the index of the input whose gradient the rule returns. `needs` are the rule's arguments
after the gradient; `saved` is True if they all are saved values. This is a plain tuple because each
node unpacks it.
"""


def compile_rule(function: Callable[..., Any], known: set[str]) -> Rule:
    """Returns the rule `function`, whose parameters name the values that it needs.

    Raises:
        ValueError: A parameter is no name that the operation knows.
    """
    code = function.__code__
    needs = code.co_varnames[1 : code.co_argcount]
    if not known.issuperset(needs):
        raise ValueError(f"a rule needs what its operation has not: {set(needs) - known}")
    return Rule(function, needs)


class Plan(NamedTuple):
    """The values to save and the rules to run.

    Attributes:
        name: The name of the operation, for messages.
        several: True if the first argument of the rules is a tuple, with one gradient per output.
        saved: The saved values: inputs by their index, output k as -1 - k.
        saved_names: Their names in messages; empty if they have none.
        rules: The rules to run, in the order of their inputs.
        options: The defaults of the options that rules name.
        splits: True if each rule is for its own input alone.
    """

    name: str
    several: bool
    saved: Sequence[int]
    saved_names: Sequence[str]
    rules: tuple[RuleOfInput, ...]
    options: Mapping[str, Any]
    splits: bool = True


def make_plan(
    name: str,
    names: Sequence[str],
    outputs: Sequence[str],
    rules: Mapping[str, Rule],
    mask: int,
    *,
    several: bool,
    options: Mapping[str, Any],
) -> Plan:
    """Returns the plan of an operation for one choice of inputs that need a gradient.

    Args:
        name: The name of the operation.
        names: The name of each input.
        outputs: The name of each output.
        rules: The rule of each differentiable argument, by name.
        mask: A bit set: bit i is set if input i needs a gradient. Each such input has a rule.
        several: As in the plan.
        options: As in the plan.
    """
    differentiated = [i for i in range(len(names)) if mask >> i & 1]
    places = {name: i for i, name in enumerate(names)}
    places |= {name: -1 - k for k, name in enumerate(outputs)}
    needed = {need for i in differentiated for need in rules[names[i]].needs}
    kept = [name for name in places if name in needed]
    numbers = {name: number for number, name in enumerate(kept)}
    return Plan(
        name,
        several=several,
        saved=tuple(places[name] for name in kept),
        saved_names=tuple(kept),
        rules=tuple(
            (i, rule.function, needs, all(isinstance(need, int) for need in needs))
            for i in differentiated
            for rule in [rules[names[i]]]
            for needs in [tuple(numbers.get(need, need) for need in rule.needs)]
        ),
        options=options,
    )


# -- gradients in the shape and dtype of their inputs --------------------------------------------


def fit(gradient: Any, shape: Shape, dtype: np.dtype[Any], edge: Edge | None = None) -> Any:
    """Returns `gradient` summed over broadcast axes, in `dtype`.

    If the input is real and its gradient complex, the result is the real part.

    Args:
        gradient: The result of a rule.
        shape: The shape of the input.
        dtype: The dtype of the input.
        edge: The edge that the gradient travels along next. A RowSparse stays one if the edge
            leads to a leaf or to another worker's graph; rules get arrays.

    Raises:
        AutogradError: The input's shape does not broadcast to the gradient's shape.
    """
    if is_row_sparse(gradient):
        if gradient.shape == shape and edge is not None and edge[0].is_end:
            return gradient.astype(dtype, copy=False)
        gradient = gradient.to_dense()
    if not isinstance(gradient, Tensor):
        gradient = as_array(gradient)
    if gradient.shape != shape:
        gradient = _sum_over_broadcast(gradient, shape)
    if gradient.dtype != dtype:
        if gradient.dtype.kind == "c" and dtype.kind != "c":
            gradient = gradient.real
        gradient = gradient.astype(dtype)
    return gradient


def _sum_over_broadcast(a: Any, to: Shape) -> Any:
    extra = a.ndim - len(to)
    kept = a.shape[extra:] if extra >= 0 else ()
    if kept == to and extra:  # no axis of length 1 was stretched: a bias
        total = a.sum(axis=tuple(range(extra)), **_summed(a.dtype))
    elif extra < 0 or any(k not in (1, n) for k, n in zip(to, kept, strict=True)):
        raise AutogradError(f"a gradient of shape {a.shape} does not fit an input of shape {to}")
    else:
        axes = [extra + k for k, n in enumerate(to) if n == 1]
        total = a.sum(axis=(*range(extra), *axes), **_summed(a.dtype)).reshape(to)
    return np.asarray(total) if isinstance(total, np.generic) else total


def _summed(dtype: Any) -> dict[str, Any]:
    """Returns the options of a sum of numbers of `dtype`: along rows NumPy adds in the dtype."""
    return {} if dtype.itemsize >= 4 else {"dtype": computing_dtype(dtype)}
