"""Shortens the traceback of a KeyboardInterrupt to one line: whoever pressed Ctrl-C knows why."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import final

__all__ = ["InterruptShortener"]

BEGIN = b"Traceback (most recent call last):"
INTERRUPT = b"KeyboardInterrupt"
_PLACE = re.compile(rb'^  File "(.*)", line (\d+), in (.*)$')


@final
@dataclass(slots=True)
class InterruptShortener:
    """Takes the lines of one worker's stderr; tracebacks of other exceptions pass as they are.

    >>> shortener = InterruptShortener()
    >>> shortener.feed(b"Traceback (most recent call last):")
    []
    >>> shortener.feed(b'  File "train.py", line 7, in main'), shortener.feed(b"    step()")
    ([], [])
    >>> shortener.feed(b"KeyboardInterrupt")
    [b'KeyboardInterrupt (train.py, line 7, in main)']
    """

    _held: list[bytes] = field(default_factory=list)

    def feed(self, line: bytes) -> list[bytes]:
        """Takes a line; returns what is to be shown now."""
        if line == BEGIN:
            before, self._held = self._held, [line]
            return before
        if not self._held:
            return [line]
        self._held.append(line)
        if line.startswith(b" "):
            return []
        held, self._held = self._held, []
        if line != INTERRUPT:
            return held
        places = [found for each in held if (found := _PLACE.match(each)) is not None]
        return [b"%s (%s, line %s, in %s)" % (line, *places[-1].groups())] if places else [line]

    def finish(self) -> list[bytes]:
        """Returns what was held back when the stream ended."""
        held, self._held = self._held, []
        return held
