"""What a fault did to a worker: written down there, checked in the test's process."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Far below the time-outs that would end what waits in vain, of 20 s and more; far above what a
# machine takes that is slow, or stands still for some seconds.
SOON = 15.0

FIELDS = ("worker", "function", "phase", "elapsed", "path", "reason", "last_seen", "type_name")


@dataclass
class Failure:
    """An exception as a worker saw it.

    Attributes:
        kind: `module:qualname` of its exact class; empty where nothing was raised.
        message: Its text.
        notes: What was added on the way.
        fields: Its attributes that an error of telegrad's may have.
        seconds: How long the call took that raised it.
        value: What was returned where nothing was raised.
    """

    kind: str
    message: str
    notes: list[str]
    fields: dict[str, Any]
    seconds: float
    value: Any = None

    def check(self, error: type[BaseException], *words: str, within: float = SOON) -> Failure:
        """Checks the exact class, the words of message and notes, and the time that it took."""
        assert self.kind == name_of_class(error), f"{error.__name__} expected, not {self}"
        for word in words:
            assert word in self.text, f"{word!r} is missing in: {self.text}"
        assert self.seconds < within, f"took {self.seconds:.1f} s, above {within:g}: {self.text}"
        return self

    @property
    def text(self) -> str:
        """All that a traceback would show at its end."""
        return "\n".join([self.message, *self.notes])


def name_of_class(error: type[BaseException]) -> str:
    return f"{error.__module__}:{error.__qualname__}"


def failure_of(call: Callable[[], object]) -> Failure:
    """Calls something that ought to fail and writes down how it did."""
    began = time.monotonic()
    try:
        value = call()
    except BaseException as error:
        fields = {name: getattr(error, name) for name in FIELDS if hasattr(error, name)}
        notes = [str(note) for note in getattr(error, "__notes__", [])]
        seconds = time.monotonic() - began
        return Failure(name_of_class(type(error)), str(error), notes, fields, seconds)
    return Failure("", "nothing was raised", [], {}, time.monotonic() - began, repr(value))


# -- the same through the output of a program ----------------------------------------------------


def report(item: str, what: Failure | str) -> None:
    """Prints one item as a line of JSON, for the test to read."""
    body = vars(what) if isinstance(what, Failure) else what
    sys.stdout.write(json.dumps({"item": item, "is": body}) + "\n")
    sys.stdout.flush()


def read_report(output: str) -> dict[str, Any]:
    """Reads what `report` printed; a launcher may have put its mark before each line."""
    found: dict[str, Any] = {}
    for line in output.splitlines():
        start = line.find('{"item"')
        if start >= 0:
            said = json.loads(line[start:])
            body = said["is"]
            found[said["item"]] = Failure(**body) if isinstance(body, dict) else body
    return found
