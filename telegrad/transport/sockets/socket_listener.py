"""The listener on a Unix or TCP socket, which the loop calls when a connection arrives."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any, final

from telegrad.transport.base import Carrier, Listener
from telegrad.transport.host import out_of_descriptors, spelled
from telegrad.transport.log import get_logger

logger = get_logger(__name__)

BACKLOG = 128  # connections that wait in the kernel until the loop takes them
PAUSE_SECONDS = 0.1  # before the next connection is taken, after one could not be


@final
class SocketListener(Listener):
    """An open socket; made on the loop.

    Args:
        opened: The socket, which listens.
        endpoint: The endpoint; empty if a dialler is told it in a hello.
        accept: Takes each carrier, in a task of its own.
        carry: Makes the carrier of a connection, given the connection and the address of its other
            end; raises an OSError if the connection is not wanted, or has gone again.
        closed: Awaited once the socket is closed.
    """

    def __init__(
        self,
        opened: socket.socket,
        endpoint: str,
        accept: Callable[[Carrier], Awaitable[None]],
        carry: Callable[[socket.socket, Any], Carrier],
        closed: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._socket = opened
        self.endpoint = endpoint
        self._accept = accept
        self._carry = carry
        self._closed = closed
        self._told = False  # once it was said that there are too many open files
        self._accepting: set[asyncio.Future[None]] = set()
        self._loop = asyncio.get_running_loop()
        opened.setblocking(False)
        self._watch()

    async def close(self) -> None:
        """Accepts no more. Idempotent."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            if self._closed is not None:
                await self._closed()

    def _watch(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket.fileno(), self._take)

    def _take(self) -> None:
        try:
            connected, address = self._socket.accept()
        except OSError as error:  # gone again, or too many open files: that would happen again
            level = logging.DEBUG
            if out_of_descriptors(error) and not self._told:
                self._told, level = True, logging.WARNING
            logger.log(level, "a connection was not taken: %s", spelled(error))
            self._loop.remove_reader(self._socket.fileno())
            self._loop.call_later(PAUSE_SECONDS, self._watch)
            return
        try:
            connected.setblocking(False)
            carrier = self._carry(connected, address)
        except OSError:
            connected.close()
            return
        task = asyncio.ensure_future(self._accept(carrier))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)
