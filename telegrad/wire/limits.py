"""What a message that arrives may ask of its reader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

__all__ = ["DEFAULT_LIMITS", "MAX_ENVELOPE_BYTES", "SMALL_LIMITS", "DecodeLimits"]

# More than any array of one host's memory. Pages are taken as bytes arrive, not when announced.
MAX_ENVELOPE_BYTES: Final = 64 * 2**30


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLimits:
    """Bounds of one message; what exceeds them is refused before memory is taken for it.

    Attributes:
        document_bytes: Of a document. Array bytes are never inside one.
        depth: Levels of lists and dicts in each other.
        elements: Items of all lists and dicts of a document together.
        message_bytes: Of a message as a whole, with its arrays.
    """

    # Ten million floats with room to spare; what is larger is better an array, which goes beside.
    document_bytes: int = 256 * 2**20
    # Twice the 128 levels that the encoder writes at most; msgpack itself reads 1024.
    depth: int = 256
    # An empty list takes 64 bytes for one on the wire: 640 MB are the most that a document becomes.
    elements: int = 10_000_000
    message_bytes: int = MAX_ENVELOPE_BYTES


DEFAULT_LIMITS: Final = DecodeLimits()
# Of telegrad's own messages that are read on the loop.
SMALL_LIMITS: Final = DecodeLimits(document_bytes=2**10, depth=8, elements=100)
