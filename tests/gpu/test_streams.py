"""The order of work on streams, and the waits of the host: counted on the stand-in.

The stand-in reports a use of an array that is not ordered after its last write, on any stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.gpu.stand_in_streams import watched


def test_the_stand_in_reports_a_use_that_is_not_ordered(stand_in_alone: Any) -> None:
    xp = stand_in_alone
    one, other = (xp.cuda.Stream(non_blocking=True) for _ in range(2))
    with watched() as seen:
        with one:
            x = xp.asarray(np.ones(3)) * 2.0
            written = one.record()
        with other:
            x + 1.0
        assert len(seen.races) == 1
        other.wait_event(written)
        with other:
            y = x + 1.0
        y.get()  # on the null stream, which waits for neither
    assert [race.partition(" uses")[0] for race in seen.races] == [
        f"stream {other.ptr}",
        "stream 0",
    ]
    assert seen.waits == ["get"]


def test_the_stand_in_reports_memory_that_is_freed_too_early(stand_in_alone: Any) -> None:
    xp = stand_in_alone
    stream = xp.cuda.Stream(non_blocking=True)
    with watched() as seen:
        for ordered in (False, True):
            x = xp.asarray(np.ones(3))
            stream.wait_event(xp.cuda.Stream.null.record())
            with stream:
                x + 1.0
            if ordered:
                xp.cuda.Stream.null.wait_event(stream.record())
            del x
            assert len(seen.races) == 1, "the first alone"
    assert "gets memory back" in seen.races[0]


@pytest.mark.parametrize("waits", ["stream", "event", "host"])
def test_the_stand_in_knows_what_a_wait_orders(stand_in_alone: Any, waits: str) -> None:
    xp = stand_in_alone
    one, other = (xp.cuda.Stream(non_blocking=True) for _ in range(2))
    with watched() as seen:
        with one:
            x = xp.asarray(np.ones(3))
        event = one.record()
        match waits:
            case "stream":
                one.synchronize()
            case "event":
                other.wait_event(event)
            case _:
                event.synchronize()
        with other:
            x * 2.0
        one.wait_event(other.record())
        del x
    assert not seen.races
    assert len(seen.waits) == (waits != "event")
