"""Handlers of signals that wait until a block is done."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from telegrad.transport import Shield
from telegrad.transport.io.shield import SIGNALS


class Raised(BaseException):
    """Is raised by a handler."""


class Handlers:
    """Handlers of some signals, and the signals that they have handled."""

    def __init__(self) -> None:
        self.handled: list[int] = []
        self.raises: set[int] = set()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.handled.append(number)
        if number in self.raises:
            raise Raised(number)


@pytest.fixture
def handlers() -> Iterator[Handlers]:
    handlers = Handlers()
    before = {number: signal.signal(number, handlers) for number in SIGNALS}
    yield handlers
    for number, handler in before.items():
        signal.signal(number, handler)


def all_stand(handlers: Callable[..., object]) -> bool:
    return all(signal.getsignal(number) is handlers for number in SIGNALS)


def test_handlers_run_after_the_block_in_the_order_of_the_signals(handlers: Handlers) -> None:
    with Shield():
        for number in [*SIGNALS, *reversed(SIGNALS)]:
            signal.raise_signal(number)
        assert handlers.handled == []
    assert handlers.handled == list(SIGNALS)
    assert all_stand(handlers)


def test_all_run_though_one_raises(handlers: Handlers) -> None:
    handlers.raises = {signal.SIGINT}
    with pytest.raises(Raised), Shield():
        for number in SIGNALS:
            signal.raise_signal(number)
    assert handlers.handled == list(SIGNALS)
    assert all_stand(handlers)


def test_one_that_raises_ends_a_wait_in_the_block(handlers: Handlers) -> None:
    handlers.raises = {signal.SIGALRM, signal.SIGTERM}
    with Shield() as shield:
        signal.raise_signal(signal.SIGALRM)
        with pytest.raises(Raised):
            shield.wait(lambda: pytest.fail("the signal came before"))
        with pytest.raises(Raised):
            shield.wait(signal.raise_signal, signal.SIGTERM)
        signal.raise_signal(signal.SIGUSR1)
    assert handlers.handled == [signal.SIGALRM, signal.SIGTERM, signal.SIGUSR1]
    assert all_stand(handlers)


def test_blocks_may_lie_in_one_another(handlers: Handlers) -> None:
    with Shield():
        with Shield():
            signal.raise_signal(signal.SIGUSR1)
        assert handlers.handled == []
    assert handlers.handled == [signal.SIGUSR1]
    assert all_stand(handlers)


def test_a_handler_that_is_set_in_the_block_stays(handlers: Handlers) -> None:
    with Shield() as shield:
        shield.wait(signal.signal, signal.SIGUSR1, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGUSR2) is handlers


def test_signals_without_a_handler_of_python_are_left_alone() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with Shield():
            assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)
