"""Objects that the tests publish, and what finds them."""

from __future__ import annotations

from telegrad import rpc


class Board:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, line: str) -> int:
        self.lines.append(line)
        return len(self.lines)

    def where(self) -> str:
        return rpc.get_worker_info().name


def publish_board(name: str) -> None:
    rpc.publish(name, Board())
