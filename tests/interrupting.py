"""Interrupts a wait of the main thread: a signal handler raises in the midst of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest import mock

import pytest

from telegrad import rpc

__all__ = ["Late", "interrupted"]


class Late(Exception):
    """Raised by the handler, as that of an alarm does."""


def _raise_late(number: int, frame: FrameType | None) -> None:
    raise Late


@contextmanager
def interrupted(
    begun: Callable[[], object], number: signal.Signals = signal.SIGALRM
) -> Iterator[None]:
    """Interrupts the block, which the main thread runs, while it waits for a future.

    Args:
        begun: Blocks until the wait is worth an interrupt; called in another thread.
        number: SIGINT for a KeyboardInterrupt; another signal for Late.
    """
    main = threading.main_thread()
    assert threading.current_thread() is main
    waits, left = threading.Event(), threading.Event()
    block = rpc.Future._block

    def noted_block(future: rpc.Future[Any], limit: float) -> bool:
        if threading.current_thread() is main:
            waits.set()
        return block(future, limit)

    def interrupt() -> None:
        begun()
        assert waits.wait(20)
        signal.pthread_kill(main.ident or 0, number)
        assert left.wait(20)  # even if it came while the thread fell asleep

    before = signal.signal(
        number, signal.default_int_handler if number == signal.SIGINT else _raise_late
    )
    thread = threading.Thread(target=interrupt)
    try:
        with (
            mock.patch.object(rpc.Future, "_block", noted_block),
            pytest.raises(KeyboardInterrupt if number == signal.SIGINT else Late),
        ):
            thread.start()
            yield
    finally:
        left.set()
        thread.join()
        signal.signal(number, before)
