"""Words of a peer, made fit for logs, messages of errors, and terminals."""

from __future__ import annotations

import re
from typing import Final

# A longer text fills a terminal, and the words of an error of ours are shorter.
MOST_CHARACTERS = 2000

# Only these characters are looked at one by one: so a traceback takes a twentieth of the time that
# a loop over all of its characters takes, at each hop of an error.
_UNUSUAL: Final = re.compile(r"[^ -~]")
_UNUSUAL_IN_LINES: Final = re.compile(r"[^ -~\n\t]")


def escaped(text: str, *, lines: bool = False, most: int = MOST_CHARACTERS) -> str:
    r"""Returns a text in which nothing can steer a terminal or look like a line of its own.

    Everything that a peer says passes here before it stands in a log, in a message of an error of
    ours, or on a terminal: escape sequences, line ends and marks of direction become visible.

    Args:
        text: The peer's words.
        lines: True if the text has several lines, as a traceback has; they stay, and tabs too.
        most: The number of characters to keep.

    Examples:
        >>> escaped("worker 'a' is gone")
        "worker 'a' is gone"
        >>> print(escaped("\x1b[2Jfake\n[0] all is well"))
        \x1b[2Jfake\n[0] all is well
    """
    if len(text) > most:
        text = f"{text[:most]}..."
    if text.isprintable():
        return text
    unusual = _UNUSUAL_IN_LINES if lines else _UNUSUAL
    return unusual.sub(_shown, text)


def _shown(found: re.Match[str]) -> str:
    each = found[0]
    return each if each.isprintable() else each.encode("unicode_escape").decode()
