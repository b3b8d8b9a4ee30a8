"""Interceptors of tests: one that does nothing, and one that counts what it had to take back."""

from __future__ import annotations

from telegrad.rpc.base.interceptor import Interceptor, Message

__all__ = ["Idle", "Undone"]


class Idle(Interceptor):
    """Does nothing with any message."""

    @property
    def name(self) -> str:
        return type(self).__name__

    def outgoing(self, message: Message) -> None:
        pass

    def incoming(self, message: Message) -> None:
        pass

    def undelivered(self, message: Message) -> None:
        pass


class Undone(Idle):
    """Counts the messages that it had to take back.

    Args:
        bulky: True for replies, False for requests: beside the first one it has so much to say that
            no envelope takes it.
    """

    def __init__(self, *, bulky: bool | None = None) -> None:
        self._bulky = bulky
        self.count = 0

    def outgoing(self, message: Message) -> None:
        if message.reply is self._bulky and not self.count:
            message.headers[self.name] = "x" * (3 * 2**20)

    def undelivered(self, message: Message) -> None:
        self.count += 1
