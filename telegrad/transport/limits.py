"""The limits on the use of one worker by others, before and after they have proved themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from telegrad.wire import DEFAULT_LIMITS, DecodeLimits

MAX_INLINE_BYTES = 2 * 2**20  # of one envelope: a write that it overfills stays under 4 MiB
# The largest message is a write of one envelope of the maximal size; a chunk has 1 MiB. An
# envelope's fields, a receipt and a tag are added to it. A message is gathered in memory before its
# sender has proved anything, so there must always be a bound.
MAX_MESSAGE_BYTES = MAX_INLINE_BYTES + 64 * 2**10

# Ten times the largest job that was tried; 4 KB each, besides gRPC's buffers.
CONNECTIONS = 10_000
# The handshake takes two round trips: a slower peer is no worker, or would be lost soon.
HANDSHAKE_SECONDS = 5.0
# gRPC gathers a message of up to 2 MiB before its size can be checked: 264 MiB in all. A worker
# needs one stream for some milliseconds, so that hundreds may start within a second.
UNPROVED = 128
HANDSHAKE_BYTES = 16 * 1024  # names and nonces take 300 bytes
UNREAD_REPLIES = 200_000


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The bounds of an Exchange.

    Attributes:
        connections: Peers at once that are not lost, and have not left.
        unproved: Streams at once that others have opened, and that have not proved themselves yet.
        handshake_bytes: Bytes of one message before the proof.
        handshake_seconds: Seconds from the first message to the proof's answer.
        unread_replies: Replies that one peer has asked for, and whose arrival it has not confirmed.
        received: The limits of one message that arrives.
    """

    connections: int = CONNECTIONS
    unproved: int = UNPROVED
    handshake_bytes: int = HANDSHAKE_BYTES
    handshake_seconds: float = HANDSHAKE_SECONDS
    unread_replies: int = UNREAD_REPLIES
    received: DecodeLimits = DEFAULT_LIMITS
