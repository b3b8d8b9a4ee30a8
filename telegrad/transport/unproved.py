"""The streams that have proved nothing yet: there is always room for one more.

A stranger that opens streams and says nothing holds each for as long as a handshake may take; an
honest worker needs one for a few milliseconds. So the newest is never turned away: where there are
too many, the oldest is cut off, of the address that has most of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from telegrad.transport.base import Carrier

__all__ = ["Unproved"]

_PORT = re.compile(r":\d+$")


@final
class Unproved:
    """Those of one worker; on the loop.

    Args:
        most: At once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[Carrier, str] = {}  # the oldest first; each with its address
        self._cut: set[Carrier] = set()

    @contextmanager
    def held(self, carrier: Carrier) -> Iterator[None]:
        """Counts a carrier while its handshake lasts, until it is `proved`."""
        self._open[carrier] = _PORT.sub("", carrier.description)
        try:
            yield
        finally:
            self._open.pop(carrier, None)
            self._cut.discard(carrier)

    def proved(self, carrier: Carrier) -> None:
        """It has proved itself, and counts no more, though its handshake goes on."""
        self._open.pop(carrier, None)

    def too_many(self) -> Carrier | None:
        """Returns whom to cut off, if there are too many; they count no more."""
        if len(self._open) <= self._most:
            return None
        ((crowd, _),) = Counter(self._open.values()).most_common(1)
        oldest = next(carrier for carrier, address in self._open.items() if address == crowd)
        del self._open[oldest]
        self._cut.add(oldest)
        return oldest

    def why_cut(self, carrier: Carrier) -> str | None:
        """Returns why a carrier was cut off; None if it was not."""
        if carrier not in self._cut:
            return None
        return f"it was the oldest of {self._most + 1} streams that had proved nothing yet"
