"""What is said of a message that cannot be decoded: by whom, from whom, of which call."""

from __future__ import annotations

import re

from telegrad.errors import DecodeError
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, read_head

__all__ = ["unreadable"]

LONGEST_NAME = 200  # characters; whoever sent the message may have written anything

# In the path to an argument the body of the message is no step: `args[0].x`.
_BODY = re.compile(r"\(at value\['(args|kwargs)'\]")


def unreadable(
    error: DecodeError, worker: str, peer: WorkerInfo, function: str, envelope: Envelope
) -> DecodeError:
    """Returns an error that names both ends and the call, besides what is wrong.

    Args:
        error: What is wrong; says "here", and means `worker`.
        worker: Who cannot read it.
        peer: Who sent it.
        function: What was called, as far as that is known already.
        envelope: The message.
    """
    if envelope.reply:
        words = f"worker {worker!r} cannot read the value of {function} from {peer.name!r}"
        return DecodeError(f"{words}: {error}")
    called = _called(envelope) or function
    words = f"worker {worker!r} cannot read the arguments of {called} from the caller {peer.name!r}"
    problem = _BODY.sub(r"(at \1", str(error))
    return DecodeError(f"{words}: {problem}")


def _called(envelope: Envelope) -> str:
    """Returns what a request calls, as its head has it; empty where that says nothing."""
    try:
        head = read_head(envelope.document, "args")
    except DecodeError:
        return ""
    name = head.get("func") or head.get("method")
    return name[:LONGEST_NAME] if isinstance(name, str) else ""
