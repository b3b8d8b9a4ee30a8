"""`OperationNode`: one recorded call of an `Operation`, and how its backward runs the rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np

from telegrad.arrays import is_inexact
from telegrad.autograd.fitting import fit
from telegrad.autograd.node import Gradients
from telegrad.autograd.saved_value import refuse_changed
from telegrad.autograd.saving_node import SavingNode, is_leaf
from telegrad.autograd.tensor import Tensor, attach

if TYPE_CHECKING:
    from telegrad.autograd.operation import Operation
    from telegrad.autograd.plan import Need, Plan
    from telegrad.types import Shape

__all__ = ["OperationNode"]


@final
class OperationNode(SavingNode):
    """One recorded call of an `Operation`, which makes it and fills in what is said below.

    Saved are, in the plan's order, a Value with its version, or what is no Tensor as it was given.

    Attributes:
        _operation: What was called.
        _plan: What it saves and which rules it runs.
        _inputs: Shape and dtype of each input that a rule is for, at its place.
        _options: As they were given.
        _conjugated: Whether the rules compute with conjugates.
    """

    __slots__ = ("_conjugated", "_inputs", "_operation", "_options", "_plan")

    _operation: Operation
    _plan: Plan
    _inputs: list[tuple[Shape, np.dtype[Any]]]
    _options: Mapping[str, Any]
    _conjugated: bool

    @property
    def name(self) -> str:
        """The operation's name."""
        return self._operation.name

    def backward(self, gradients: Gradients) -> Gradients:
        """Runs the rule of each input that needs a gradient."""
        saved = self._saved
        if saved is None:
            saved = self.restore_saved()
        if self._operation.several:
            gradient: Any = gradients
            recorded = any(isinstance(g, Tensor) for g in gradients)
        else:
            gradient = gradients[0]
            recorded = type(gradient) is not np.ndarray and isinstance(gradient, Tensor)
        if self._conjugated:
            gradient = _conjugate(gradient)
        unpacked: list[Any] = []
        for entry in saved:
            if type(entry) is tuple:
                value, version = entry
                if (value.counter or value).changes != version:
                    refuse_changed(value, version, self.name, self._what(len(unpacked)))
                entry = self._recorded(len(unpacked), value) if recorded else value.array
            unpacked.append(entry)
        results: list[Any] = [None] * len(self.edges)
        inputs = self._inputs
        for i, rule, needs, only, pick in self._plan.rules:
            shape, dtype = inputs[i]
            if only is not None:
                result = rule(gradient, unpacked[only])
            elif not needs:
                result = rule(gradient)
            elif pick is not None:
                result = rule(gradient, *pick(unpacked))
            else:
                result = rule(gradient, *self._found(needs, i, shape, unpacked))
            if result is None:
                continue
            if self._conjugated:
                result = _conjugate(result)
            if type(result) is not np.ndarray or result.shape != shape or result.dtype is not dtype:
                result = fit(result, shape, dtype, self.edges[i])
            results[i] = result
        return tuple(results)

    def _recorded(self, k: int, value: Any) -> Tensor:
        place = self._plan.saved[k]
        edge = self.edges[place] if place >= 0 else (self, -1 - place)
        if edge is None or not is_inexact(value.array.dtype):
            return attach(value.array, None, memory=value)
        return attach(value.array, *edge, memory=value)

    def _found(
        self, needs: tuple[Need, ...], i: int, shape: Shape, unpacked: list[Any]
    ) -> list[Any]:
        found: list[Any] = []
        for need in needs:
            if isinstance(need, int):
                found.append(unpacked[need])
            elif need == "shape":
                found.append(shape)
            elif need in self._options:
                found.append(self._options[need])
            else:
                found.append(i if need == "i" else self._operation.options.get(need))
        return found

    def _what(self, k: int) -> str:
        plan = self._plan
        return f"the {'argument' if plan.saved[k] >= 0 else 'result'} {plan.saved_names[k]!r}"

    def saved_leaves(self) -> tuple[Any, ...]:
        """Returns those of the saved entries that leaves hold, at their places, None elsewhere."""
        return tuple([
            entry if place >= 0 and is_leaf(self.edges[place]) else None
            for place, entry in zip(self._plan.saved, self._saved or (), strict=False)
        ])  # fmt: skip


def _conjugate(gradient: Any) -> Any:
    if type(gradient) is tuple:
        return tuple([None if g is None else np.conjugate(g) for g in gradient])
    return np.conjugate(gradient)
