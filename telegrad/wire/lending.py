"""The news about shared memory in frames; parts of envelopes may lie there.

A **slab** is memory that the writer of a frame shares with its reader; its descriptor travels
beside the frame that names it first. A part that lies in a slab is **lent**: the reader has it
until a frame of its own gives the loan back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from telegrad import pb
from telegrad.errors import DecodeError

FIRST_BUFFER = 2  # before it are the document and the externals
# A smaller part is cheaper in its frame: it is copied there four times, which takes 1 us for each
# KiB; a loan takes some 70 us, in Python that runs with cold caches.
LENT_BYTES = 64 * 2**10


@final
@dataclass(frozen=True, slots=True)
class Lent:
    """The place of a lent part of an envelope.

    Attributes:
        loan: The number of the loan; each is used once on a stream.
        slab: The number of the slab; 0 if the loan is the reader's own, which the writer gives back
            together with its present content.
        offset: The place of its first byte in the slab.
        size: The number of its bytes.
    """

    loan: int
    slab: int
    offset: int
    size: int


@final
@dataclass(slots=True)
class Lending:
    """The news about shared memory in one frame.

    Attributes:
        slabs: New slabs with their sizes; their descriptors travel beside this frame, in this
            order.
        lent: The parts that lie in slabs, by envelope number.
        returned: The reader's loans that the writer gives back.
        dropped: The writer's slabs that will not be named again.
    """

    slabs: list[tuple[int, int]] = field(default_factory=list)
    lent: dict[int, dict[int, Lent]] = field(default_factory=dict)
    returned: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Returns True if there is any news."""
        return bool(self.lent or self.returned or self.slabs or self.dropped)


def pack_lending(packed: pb.Lending, lending: Lending) -> None:
    """Writes a frame's news about shared memory."""
    packed.SetInParent()
    for number, size in lending.slabs:
        packed.slabs.append(number)
        packed.slab_sizes.append(size)
    for envelope, parts in lending.lent.items():
        for part, lent in parts.items():
            packed.envelopes.append(envelope)
            packed.parts.append(part)
            packed.loans.append(lent.loan)
            packed.lenders.append(lent.slab)
            packed.offsets.append(lent.offset)
    packed.returned.extend(lending.returned)
    packed.dropped.extend(lending.dropped)


def unpack_lending(packed: pb.Lending, awaited: dict[int, dict[int, int]]) -> Lending:
    """Reads a frame's news about shared memory.

    Args:
        packed: The message from the writer.
        awaited: The announced parts, by envelope number; lent parts are removed from it.

    Raises:
        DecodeError: A lent part is not announced, or a list is too short.
    """
    lent: dict[int, dict[int, Lent]] = {}
    try:
        slabs = list(zip(packed.slabs, packed.slab_sizes, strict=True))
        columns = (packed.envelopes, packed.parts, packed.loans, packed.lenders, packed.offsets)
        for envelope, part, loan, slab, offset in zip(*columns, strict=True):
            size = awaited[envelope].pop(part)
            lent.setdefault(envelope, {})[part] = Lent(loan, slab, offset, size)
    except KeyError as error:
        raise DecodeError(
            "what is lent is no part that an envelope of this frame announces"
        ) from error
    except ValueError as error:
        raise DecodeError(f"lists of shared memory that do not fit: {error}") from error
    for envelope in lent:
        if not awaited[envelope]:
            del awaited[envelope]
    return Lending(slabs, lent, list(packed.returned), list(packed.dropped))
