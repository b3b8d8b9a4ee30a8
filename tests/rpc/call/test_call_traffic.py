"""The envelopes of a call of each kind, and their bytes, exactly; a change of the wire format shows here.

Not counted: what a session adds (4 to 9 bytes of frame and number, a tag), which varies with numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from telegrad import rpc
from telegrad.testing import Cluster
from tests.rpc.call import traffic


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    with Cluster(2, processes=True, options=rpc.RpcOptions(lost_after=20.0)) as cluster:
        cluster.run(traffic.watch)
        yield cluster


NAME = len("tests.rpc.call.traffic")  # each call names its function
MIB = 2**20

# fmt: off
COUNTS = [  # bytes without buffers, bytes of buffers: of what the caller posts, and the callee
    ("empty",           [("rpc.call", 29 + NAME, 0)],         [("rpc.reply reply", 1, 0)]),
    ("awaited",         [("rpc.call", 29 + NAME, 0)],         [("rpc.reply reply", 1, 0)]),
    ("ten at once",     [("rpc.call", 29 + NAME, 0)] * 10,    [("rpc.reply reply", 1, 0)] * 10),
    ("numbers",         [("rpc.call", 46 + NAME, 0)],         [("rpc.reply reply", 20, 0)]),
    ("small array",     [("rpc.call", 49 + NAME, 64)],        [("rpc.reply reply", 23, 64)]),
    ("big array",       [("rpc.call", 53 + NAME, MIB)],       [("rpc.reply reply", 27, MIB)]),
    ("big document",    [("rpc.call", 100_329 + NAME, 0)],    [("rpc.reply reply", 100_303, 0)]),
    ("coroutine",       [("rpc.call", 27 + NAME, 0)],         [("rpc.reply reply", 1, 0)]),
    ("async_execution", [("rpc.call", 31 + NAME, 0)],         [("rpc.reply reply", 1, 0)]),
    ("stream",          [("rpc.stream", 35 + NAME, 0)],       [("rpc.item", 11, 0)] * 3
                                                              + [("rpc.reply reply", 17, 0)]),
]
# fmt: on


@pytest.mark.parametrize(("body", "caller", "callee"), COUNTS, ids=[each[0] for each in COUNTS])
def test_what_a_call_sends(
    pair: Cluster,
    body: str,
    caller: list[traffic.Noted],
    callee: list[traffic.Noted],
) -> None:
    assert pair.call(0, traffic.traffic, body) == (caller, callee)


def test_what_a_failure_sends(pair: Cluster) -> None:
    """One envelope each way; the bytes of the answer are those of a traceback."""
    mine, theirs = pair.call(0, traffic.traffic, "failure")
    assert [kind for kind, _, _ in mine] == ["rpc.call"]
    assert [(kind, size < 1000) for kind, size, _ in theirs] == [("rpc.error reply", True)]
