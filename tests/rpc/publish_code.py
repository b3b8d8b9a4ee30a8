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


def publish_and_find() -> str:
    """Each looks up what the other may not have published yet."""
    peer = f"worker{1 - rpc.get_worker_info().rank}"
    rpc.publish("board", Board())
    found = rpc.lookup(peer, "board")
    assert found.rpc_sync().write("a line") == 1
    assert found.rpc_sync().lines == ["a line"]
    where: str = found.rpc_sync().where()
    rpc.rpc_sync(peer, take_back, ("board",))
    return where


def take_back(name: str) -> None:
    rpc.unpublish(name)
