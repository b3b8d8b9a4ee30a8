"""Messages between a program and its local workers: lines of JSON over a pair of sockets."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any, final

__all__ = ["LineChannel"]


@final
class LineChannel:
    """One end. Any thread may send; one thread reads.

    Args:
        end: The socket; closed with this.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._reader = end.makefile("rb")
        self._lock = threading.Lock()  # guards what is written: a line is never broken

    def send(self, verb: str, **fields: object) -> bool:
        """Sends a message; returns whether the other end is still there."""
        line = json.dumps({"verb": verb, **fields}).encode() + b"\n"
        try:
            with self._lock:
                self._socket.sendall(line)
        except OSError:
            return False
        return True

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yields what arrives, until the other end is closed or gone."""
        try:
            for line in self._reader:
                yield json.loads(line)
        except (OSError, ValueError):  # closed here, or cut off in the middle
            return
        finally:
            self._reader.close()  # it keeps the descriptor open as long as it is

    def close(self) -> None:
        """Ends both directions, a read that waits included; idempotent."""
        with contextlib.suppress(OSError):  # the other end was first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
