"""The kinds that workers and their coordinator exchange, and how errors travel in replies.

worker -> coordinator   member.join       reply: the members, once the job is complete
                        member.reserve    reply: name, rank and world size of one who comes on top
                        member.shutdown   reply: once every living member has sent it
                        member.leave      reply: at once; the others hear `member.lost`
                        member.standing   reply: at once, whether an incarnation is a member; null
                                          where it is not this coordinator that can say so
                        member.gave_up    one-way: the sender has given up a member
                        store.*           reply: the result; get and wait reply when set
                        store.forget      one-way: a waiting get or wait gave up
coordinator -> worker   member.progress   one-way, before the worker is welcomed
                        member.joined     one-way, after it: a replacement or one more came;
                                          before it: this one was welcomed
                        member.lost       one-way: a member is gone for good
                        member.given_up   one-way: another member has given up this one
                        member.running    one-way, to whoever waits in shutdown
both                    control.reply, control.error   envelopes with `reply` set
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from telegrad.errors import (
    AuthenticationError,
    DecodeError,
    DuplicateNameError,
    RendezvousError,
    TelegradError,
)

__all__ = ["ERROR", "REPLY", "decode_error", "encode_error", "line_name", "line_owner"]

COORDINATOR_NAME: Final = "coordinator"
COORDINATOR_RANK: Final = -1
INCARNATION_KEY: Final = "telegrad/incarnation"

REPLY: Final = "control.reply"
ERROR: Final = "control.error"

RESERVE: Final = "member.reserve"
JOIN: Final = "member.join"
SHUTDOWN: Final = "member.shutdown"
LEAVE: Final = "member.leave"
STANDING: Final = "member.standing"
GAVE_UP: Final = "member.gave_up"
PROGRESS: Final = "member.progress"
JOINED: Final = "member.joined"
LOST: Final = "member.lost"
GIVEN_UP: Final = "member.given_up"
RUNNING: Final = "member.running"

STORE_SET: Final = "store.set"
STORE_GET: Final = "store.get"
STORE_ADD: Final = "store.add"
STORE_COMPARE_SET: Final = "store.compare_set"
STORE_DELETE: Final = "store.delete"
STORE_WAIT: Final = "store.wait"
STORE_NUM_KEYS: Final = "store.num_keys"
STORE_FORGET: Final = "store.forget"

# The only types that a control reply may raise at its receiver.
_ERROR_TYPES: Final[Mapping[str, type[Exception]]] = {
    cls.__name__: cls
    for cls in (
        AuthenticationError,
        DecodeError,
        DuplicateNameError,
        RendezvousError,
        TypeError,
        ValueError,
    )
}


def encode_error(error: Exception) -> dict[str, object]:
    """Returns an error as plain values; a type out of the table becomes RendezvousError."""
    name = type(error).__name__
    return {"type": name if name in _ERROR_TYPES else "RendezvousError", "message": str(error)}


def decode_error(body: object) -> Exception:
    """Returns the error that a `control.error` reply carries."""
    if not isinstance(body, dict):
        return RendezvousError("the coordinator answered with an error that cannot be read")
    error_type = _ERROR_TYPES.get(str(body.get("type")), RendezvousError)
    return error_type(str(body.get("message", "")))


def is_ours(error: Exception) -> bool:
    """Tells whether an error is an answer to bad input rather than a bug in the coordinator."""
    return isinstance(error, TelegradError | TypeError | ValueError)


def line_name(rank: int, incarnation: int, owner: str) -> str:
    """Returns what a worker's line to the coordinator is called.

    >>> line_name(3, 255, "worker3")
    'store.3.ff.worker3'
    """
    return f"store.{rank}.{incarnation:x}.{owner}"


def line_owner(name: str) -> str:
    """Returns whose line it is, "" where that has no name yet: what a certificate has to prove.

    >>> line_owner("store.3.ff.worker3"), line_owner("store.-1.ff."), line_owner("worker3")
    ('worker3', '', '')
    """
    kind, _, rest = name.partition(".")
    return rest.split(".", 2)[2] if kind == "store" and rest.count(".") >= 2 else ""
