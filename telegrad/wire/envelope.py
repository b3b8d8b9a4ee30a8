"""The envelope that travels between two workers, with its document and its buffers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(slots=True)
class Envelope:
    """One message of a session.

    Attributes:
        kind: An open string, `package.verb`; each package registers handlers for its own kinds.
        call: The id that the caller gives a request and that the reply repeats; 0 for a message
            that expects no reply.
        reply: True if this answers a request of the receiver.
        time_left: Seconds until the deadline when it was written; `math.inf` without one.
        depth: The length of the chain of calls above: 0 for a call by user code that serves nobody.
        document: The encoded value (see `encode`); holds no array bytes.
        externals: The descriptions of the document's externals, in order. They are separate from
            the document since they may differ between destinations.
        headers: One encoded entry for each interceptor that adds one.
        buffers: The bytes of the externals, in order. Received ones are writable and belong to
            the receiver alone.
        number: The envelope's place in its session; set by the session, not by its poster.
        staged: Copies of parts in memory that the receiver shares, by part number (0 the document,
            1 the externals, 2 the first buffer, ...); never received.
        in_order: True if its pieces are sent after those of all earlier envelopes for which this is
            True, too; never received.
        failure: The error that the receiver had no memory for parts that came as pieces, so that
            they are missing; None elsewhere.
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
    in_order: bool = False
    failure: MemoryError | None = None

    def beside(self) -> int:
        """Returns the bytes beside its document: of its externals and buffers."""
        return len(self.externals) + sum([memoryview(buffer).nbytes for buffer in self.buffers])
