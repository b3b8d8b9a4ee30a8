"""What travels between two workers: one envelope, its document and its buffers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ["Buffer", "Envelope"]

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(slots=True)
class Envelope:
    """One message of a session.

    Attributes:
        kind: An open string, `package.verb`; each package registers handlers for its own kinds.
        call: The id that a request gets from its caller and that its reply repeats; 0 for a
            message that expects no reply.
        reply: Whether this answers a request of the receiver.
        time_left: Seconds until the deadline when it was written; `math.inf` without one.
        depth: Length of the call tree above: 0 for a call by user code that serves nobody.
        document: The encoded value (`wire.codec`); holds no array bytes.
        externals: What the externals of the document are, in their order; beside the document
            since it may differ from one destination to the next.
        headers: One entry per interceptor that has something to say, encoded by it.
        buffers: The bytes of the externals, in order. Received ones are writable and belong to
            the receiver alone.
        number: The envelope's place in its session; set by the session, not by whoever posts.
        staged: Copies of parts, by their numbers (0 the document, 1 the externals, 2 the first buffer,
            ...), in memory that the receiver shares; never received.
    """

    kind: str
    call: int = 0
    reply: bool = False
    time_left: float = math.inf
    depth: int = 0
    document: bytes = b""
    externals: bytes = b""
    headers: dict[str, bytes] = field(default_factory=dict)
    buffers: Sequence[Buffer] = ()
    number: int = 0
    staged: Mapping[int, memoryview] | None = None
