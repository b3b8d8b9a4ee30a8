"""The checks of the roots of a backward and of their gradients, with their error messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from telegrad.autograd import Gradient, Tensor
from telegrad.autograd.seams import graph_root
from telegrad.dist_autograd.pass_runner import Root
from telegrad.errors import AutogradError
from telegrad.rpc import RRef

__all__ = ["check_root", "gradients_for", "listed", "root_of"]


def listed(roots: object) -> list[Tensor | RRef[Any]]:
    """Returns the roots of a pass as a list.

    Raises:
        TypeError: `roots` is no list or tuple, or one item is neither a Tensor nor an RRef.
        AutogradError: The list is empty.
    """
    if not isinstance(roots, list | tuple):
        raise TypeError(
            f"roots must be a list of tensors, not {type(roots).__name__}; for one loss "
            "write dist_autograd.backward(context_id, [loss])"
        )
    if not roots:
        raise AutogradError("backward needs at least one root, and the list is empty")
    for i, root in enumerate(roots):
        if not isinstance(root, Tensor | RRef):
            raise TypeError(_no_tensor(f"roots[{i}]", root))
    return list(roots)


def gradients_for(roots: Sequence[object], gradients: object) -> list[Any]:
    """Returns one gradient for each root, None for the 1 of a scalar.

    Raises:
        TypeError: `gradients` is no list or tuple.
        AutogradError: The numbers of gradients and roots differ.
    """
    if gradients is None:
        return [None] * len(roots)
    if not isinstance(gradients, list | tuple):
        raise TypeError(
            f"gradients must be a list with one for each root, not {type(gradients).__name__}; for "
            "one root write dist_autograd.backward(context_id, [root], [gradient])"
        )
    if len(gradients) != len(roots):
        raise AutogradError(
            f"{len(roots)} roots were given {len(gradients)} gradients; give one for each, None "
            "where a scalar's is 1"
        )
    return list(gradients)


def check_root(root: object, what: str, *, given: bool = False) -> Tensor:
    """Returns `root` if it can be the root of a backward.

    Args:
        root: The tensor.
        what: The name of the tensor in messages.
        given: True if its gradient is given.

    Raises:
        TypeError: `root` is no Tensor.
        AutogradError: The tensor needs no gradient; or it has more than one item and its gradient
            is not given.
    """
    if not isinstance(root, Tensor):
        raise TypeError(_no_tensor(what, root))
    if not given and root.size != 1:
        raise AutogradError(
            f"{what} has shape {root.shape}, and a root must be a scalar; reduce it, "
            "for instance with .sum() or .mean(), or give its gradient"
        )
    if not root.requires_grad:
        raise AutogradError(
            f"{what} needs no gradient: it does not depend on any tensor that does, or "
            "was computed under no_grad() or from values received outside the context"
        )
    return root


def root_of(
    root: object, what: str, gradient: Gradient | None = None, *, create_graph: bool = False
) -> Root:
    """Returns the edge and the gradient at which a pass with this root starts.

    Args:
        root: The tensor.
        what: The name of the tensor in messages.
        gradient: The gradient of the tensor, None for the 1 of a scalar.
        create_graph: True to record the pass.

    Raises:
        TypeError: `root` is no Tensor.
        AutogradError: `check_root` refuses it, or the gradient has another shape.
    """
    tensor = check_root(root, what, given=gradient is not None)
    return graph_root(tensor, gradient, create_graph=create_graph)


def _no_tensor(what: str, root: object) -> str:
    return f"{what} must be a Tensor, not {type(root).__name__}; a root is the loss itself"
