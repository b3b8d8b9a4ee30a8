"""A backward in two halves: the gradients of chosen inputs first, those of all other leaves later.

    y = linear(x, w, b)         first half    g @ w            to x
                                later         g.T @ x, g.sum   to w and b

A node runs in the first half only the rules of the inputs that lead on to the chosen ones; what it
leaves out keeps the gradients that reached it, and runs in the second half. So no rule runs twice,
and a pipeline can hand the gradient of its input back before it computes those of its weights
(Qi, Wan, Huang, Lin: Zero Bubble Pipeline Parallelism, 2023, arXiv:2401.10241).

A node that cannot run the rules of some inputs alone, one of a `Function` or with hooks, runs whole
in the first half.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from telegrad.autograd.graph.graph_task import GraphTask, LeftOut
from telegrad.autograd.graph.node import Edge
from telegrad.autograd.tensor.tensor import Accumulate, Gradient, Tensor


@final
class HalvedBackward:
    """One backward in two halves; each is run once, in this order.

    Args:
        roots: The edges where gradients start, with the gradients.
        inputs: The edges of the inputs.

    >>> import numpy as np
    >>> from telegrad.autograd import tensor
    >>> from telegrad.autograd.seams import edge_of, graph_root
    >>> x, w = tensor(3.0, requires_grad=True), tensor(2.0, requires_grad=True)
    >>> edge = edge_of(x)
    >>> halved = HalvedBackward([graph_root(x * w, None)], [edge])
    >>> halved.run_inputs()[edge].item()
    2.0
    >>> halved.run_weights(lambda leaf, gradient: print(leaf is w, gradient.item()))
    True 3.0
    """

    def __init__(self, roots: Sequence[tuple[Edge, Gradient]], inputs: Sequence[Edge]) -> None:
        self._roots = list(roots)
        self._inputs = list(inputs)
        self._later: list[LeftOut] = []

    def run_inputs(self) -> dict[Edge, Gradient]:
        """Returns the gradients that arrived at the inputs."""
        if not self._inputs:
            return {}
        task = GraphTask(self._roots, accumulate=_none, captures=self._inputs, later=self._later)
        task.run()
        self._roots = [(edge, g) for edge, g in self._roots if edge[0] not in task.reachable]
        return task.captured

    def run_weights(self, accumulate: Accumulate) -> None:
        """Hands the gradient of every other leaf to `accumulate`, as a `GraphTask` does."""
        roots, self._roots = self._roots, []
        later, self._later = self._later, []
        while later:
            held, gradients, others = later.pop()
            if not others:
                roots.append((held, gradients))
                continue
            results = held.backward_of(gradients, others)
            held.release()
            roots += [(held.edges[i], results[i]) for i in others if results[i] is not None]
            del results
        if roots:
            task = GraphTask(roots, accumulate=accumulate)
            roots.clear()  # so that the task alone holds the gradients, and need not copy them
            task.run()


def _none(tensor: Tensor, gradient: Gradient) -> None:
    """Does nothing: the first half captures gradients and accumulates none."""
