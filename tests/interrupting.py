"""Interrupts a wait of the main thread: a signal handler raises in the midst of it."""

from __future__ import annotations

import queue
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
    waits = threading.Event()
    ends: queue.SimpleQueue[str] = queue.SimpleQueue()  # of the block, or of the handler alone
    block = rpc.Future._block

    def noted_block(future: rpc.Future[Any], limit: float) -> bool:
        if threading.current_thread() is main:
            waits.set()
        return block(future, limit)

    def interrupt() -> None:
        begun()
        assert waits.wait(20)
        signal.pthread_kill(main.ident or 0, number)
        while ends.get(timeout=20) == "swallowed":  # else even as the thread fell asleep
            signal.pthread_kill(main.ident or 0, number)

    def handle(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_name == "__del__":  # Python ends there what is raised
                ends.put("swallowed")
                return
            frame = frame.f_back
        raise KeyboardInterrupt if number == signal.SIGINT else Late

    before = signal.signal(number, handle)
    thread = threading.Thread(target=interrupt)
    try:
        with (
            mock.patch.object(rpc.Future, "_block", noted_block),
            pytest.raises(KeyboardInterrupt if number == signal.SIGINT else Late),
        ):
            thread.start()
            yield
    finally:
        ends.put("left")
        thread.join()
        signal.signal(number, before)
