"""`OperationNode`: one recorded call of an `Operation`, and how its backward runs the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import numpy as np

from telegrad.arrays import is_inexact
from telegrad.autograd.fitting import fit
from telegrad.autograd.node import Edge, Gradients
from telegrad.autograd.saved_value import refuse_changed
from telegrad.autograd.saving_node import SavingNode, is_leaf
from telegrad.autograd.tensor import Tensor, attach

if TYPE_CHECKING:
    from telegrad.autograd.operation import Operation
    from telegrad.autograd.plan import Plan
    from telegrad.types import Shape

__all__ = ["OperationNode"]


@final
class OperationNode(SavingNode):
    """One recorded call of an `Operation`.

    Args:
        operation: What was called.
        plan: What it saves and which rules it runs.
        edges: One per input.
        saved: In the plan's order: (Value, its version), or what is no Tensor as it was given.
        inputs: Shape and dtype of each input that a rule is for, in the plan's order.
        options: As they were given.
        num_outputs: How many outputs there are.
        conjugated: Whether the rules compute with conjugates.
    """

    __slots__ = ("_conjugated", "_inputs", "_operation", "_options", "_plan")

    def __init__(
        self,
        operation: Operation,
        plan: Plan,
        edges: list[Edge | None],
        saved: list[Any],
        inputs: list[tuple[Shape, np.dtype[Any]]],
        options: dict[str, Any],
        num_outputs: int,
        conjugated: bool,
    ) -> None:
        self.edges = tuple(edges)
        self.num_outputs = num_outputs
        self._hooks = None
        self._operation = operation
        self._plan = plan
        self._saved = saved
        self._inputs = inputs
        self._options = options
        self._conjugated = conjugated

    @property
    def name(self) -> str:
        """The operation's name."""
        return self._operation.name

    def backward(self, gradients: Gradients) -> Gradients:
        """Runs the rule of each input that needs a gradient."""
        saved = self._saved
        if saved is None:
            saved = self.restore_saved()
        several = self.num_outputs > 1 or self._operation.several
        gradient: Any = gradients if several else gradients[0]
        recorded = isinstance(gradient, Tensor) or (
            several and any(isinstance(g, Tensor) for g in gradients)
        )
        if self._conjugated:
            gradient = _conjugate(gradient)
        unpacked = []
        for k, entry in enumerate(saved):
            if type(entry) is not tuple:
                unpacked.append(entry)
                continue
            value, version = entry
            if (value.counter or value).changes != version:
                refuse_changed(value, version, self.name, self._what(k))
            unpacked.append(self._recorded(k, value) if recorded else value.array)
        results: list[Any] = [None] * len(self.edges)
        for (i, rule, needs, simple), (shape, dtype) in zip(
            self._plan.rules, self._inputs, strict=True
        ):
            if simple:
                if not needs:
                    result = rule(gradient)
                elif len(needs) == 1:
                    result = rule(gradient, unpacked[needs[0]])  # type: ignore[index]
                else:
                    result = rule(gradient, *[unpacked[need] for need in needs])  # type: ignore[index]
            else:
                result = rule(gradient, *[self._find(need, i, shape, unpacked) for need in needs])
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
        edge = self.edges[place] if place >= 0 else Edge(self, -1 - place)
        if edge is None or not is_inexact(value.array.dtype):
            return attach(value.array, None, memory=value)
        return attach(value.array, edge.node, edge.output, memory=value)

    def _find(self, need: Any, i: int, shape: Shape, unpacked: list[Any]) -> Any:
        if type(need) is int:
            return unpacked[need]
        if need == "shape":
            return shape
        if need == "i":
            return i
        return self._options.get(need, self._operation.options.get(need))

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
