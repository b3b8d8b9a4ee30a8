"""A pipe between a test and its worker process, for all values that a call could carry."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, final

from telegrad.wire import decode, describe, encode, names, rebuild


@final
class Channel:
    """Sends and receives values; any thread may send, one receives.

    Args:
        pipe: One end of a `multiprocessing.Pipe`.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._sending = threading.Lock()

    def send(self, header: Sequence[str | int], value: Any) -> None:
        """Sends one value, and a header that the receiver needs before it decodes the value.

        Raises:
            EncodeError: The value cannot travel; nothing was sent.
            OSError: The other end is gone.
        """
        encoded = encode(value)
        externals, buffers = describe(encoded.externals)
        with self._sending:
            self._pipe.send_bytes(encode([*header]).document)
            self._pipe.send_bytes(len(buffers).to_bytes(4, "big"))
            self._pipe.send_bytes(encoded.document)
            self._pipe.send_bytes(externals)
            for buffer in buffers:
                self._pipe.send_bytes(bytes(buffer))

    def answer(self, number: int, error: BaseException | None, value: Any) -> None:
        """Sends an answer; a value that cannot travel is replaced by the error that tells so."""
        try:
            self.send([number], [error, value])
        except OSError:
            return  # nobody waits any more
        except Exception as refused:
            self.send([number], [refused, None])

    def receive(self) -> tuple[list[Any], Callable[[], Any]]:
        """Returns the next header, and a function that decodes its value after the needed imports.

        Raises:
            EOFError: The other end is gone.
        """
        header: list[Any] = decode(self._pipe.recv_bytes(), [])
        count = int.from_bytes(self._pipe.recv_bytes(), "big")
        document = self._pipe.recv_bytes()
        externals = self._pipe.recv_bytes()
        buffers = [bytearray(self._pipe.recv_bytes()) for _ in range(count)]
        return header, lambda: decode(document, rebuild(externals, buffers), functions=names.load)

    def close(self) -> None:
        """Closes this end."""
        self._pipe.close()
