"""An interceptor that counts the messages that it had to take back."""

from __future__ import annotations

from telegrad.rpc.call.interceptor import Interceptor, Message

__all__ = ["Undone"]


class Undone(Interceptor):
    """Counts the messages that it had to take back.

    Args:
        bulky: True for replies, False for requests: beside the first one it has so much to say that
            no envelope takes it.
    """

    def __init__(self, *, bulky: bool | None = None) -> None:
        self._bulky = bulky
        self.count = 0

    @property
    def name(self) -> str:
        return "undone"

    def outgoing(self, message: Message) -> None:
        if message.reply is self._bulky and not self.count:
            message.headers[self.name] = "x" * (3 * 2**20)

    def incoming(self, message: Message) -> None:
        pass

    def undelivered(self, message: Message) -> None:
        self.count += 1
