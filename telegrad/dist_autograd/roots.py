"""What may be the root of a backward, and the words for what may not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from telegrad.autograd import Gradient, Tensor
from telegrad.dist_autograd.pass_runner import Root
from telegrad.errors import AutogradError
from telegrad.rpc import RRef

__all__ = ["check_root", "gradients_for", "listed", "root_of"]


def listed(roots: object) -> list[Tensor | RRef[Any]]:
    """Returns the roots that a pass was asked for with.

    Raises:
        TypeError: They are in no list, or one is neither a Tensor nor an RRef.
        AutogradError: There are none.
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
    """Returns one gradient for each root, None where it is to be 1.

    Raises:
        TypeError: They are in no list.
        AutogradError: They are not as many as the roots.
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
    """Returns what may be a root.

    Args:
        root: The tensor.
        what: What it is called in messages.
        given: Whether its gradient is given.

    Raises:
        TypeError: It is no Tensor.
        AutogradError: It needs no gradient; or its gradient is not given and it is no real scalar.
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
    """Returns where a pass starts that has one tensor as a root.

    Args:
        root: The tensor.
        what: What it is called in messages.
        gradient: Its gradient, None for the 1 of a scalar.
        create_graph: Whether the pass is recorded.

    Raises:
        TypeError: It is no Tensor.
        AutogradError: As for `check_root`, or the gradient has another shape.
    """
    tensor = check_root(root, what, given=gradient is not None)
    return tensor.root(gradient, create_graph=create_graph)


def _no_tensor(what: str, root: object) -> str:
    return f"{what} must be a Tensor, not {type(root).__name__}; a root is the loss itself"
