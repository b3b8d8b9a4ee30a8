"""What may be the root of a backward, and the words for what may not."""

from __future__ import annotations

from typing import Any

from telegrad.autograd import Tensor
from telegrad.dist_autograd.pass_runner import Root
from telegrad.errors import AutogradError
from telegrad.rpc import RRef

__all__ = ["only_rref", "root_of", "roots_of"]


def roots_of(roots: object) -> list[Root]:
    """Returns where a pass starts that was asked for with a list of tensors.

    Raises:
        TypeError: It is no list, or an item no Tensor.
        AutogradError: It is empty, or an item no scalar or needs no gradient.
    """
    if not isinstance(roots, list | tuple):
        raise TypeError(
            f"roots must be a list of scalar tensors, not {type(roots).__name__}; for one loss "
            "write dist_autograd.backward(context_id, [loss])"
        )
    if not roots:
        raise AutogradError("backward needs at least one root, and the list is empty")
    return [root_of(root, f"roots[{i}]") for i, root in enumerate(roots)]


def root_of(root: object, what: str) -> Root:
    """Returns where a pass starts that has one tensor as its root.

    Args:
        root: The tensor.
        what: What it is called in messages.

    Raises:
        TypeError: It is no Tensor.
        AutogradError: It is no scalar, or needs no gradient.
    """
    if not isinstance(root, Tensor):
        raise TypeError(
            f"{what} must be a Tensor, not {type(root).__name__}; a root is the loss itself"
        )
    if root.size != 1:
        raise AutogradError(
            f"{what} has shape {root.shape}, and a root must be a scalar; reduce it, "
            "for instance with .sum() or .mean()"
        )
    if not root.requires_grad:
        raise AutogradError(
            f"{what} needs no gradient: it does not depend on any tensor that does, or "
            "was computed under no_grad() or from values received outside the context"
        )
    return root.root()


def only_rref(roots: object) -> RRef[Any] | None:
    """Returns the RRef that is the only root; None where no root is an RRef.

    Raises:
        AutogradError: It is not the only one.
    """
    items = list(roots) if isinstance(roots, list | tuple) else []
    rrefs = [root for root in items if isinstance(root, RRef)]
    if not rrefs:
        return None
    if len(items) > 1:
        raise AutogradError(
            f"an RRef is a root only where it is the only one, and there are {len(items)}, which may "
            "be on several workers; add the losses up on one of them, for instance with "
            "rpc.remote(to, add, args=(first, second)), where add fetches what is not there"
        )
    return rrefs[0]
