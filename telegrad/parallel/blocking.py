"""The refusal of what would block an event loop of telegrad's."""

from __future__ import annotations

from telegrad.errors import BlockingCallError
from telegrad.rpc.seams import on_own_loop


def refuse_on_loop(what: str, instead: str) -> None:
    """Raises BlockingCallError on an event loop of telegrad's; nothing has been sent then.

    Args:
        what: The subject of the message: the call that would block.
        instead: The end of the message: the program to write instead.
    """
    if on_own_loop():
        raise BlockingCallError(
            f"{what} would block a loop of telegrad's, nothing was sent; {instead}"
        )
