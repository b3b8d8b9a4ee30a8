"""What a pass costs grows with the tensors that cross between workers, and with nothing else.

Work is counted, not time: messages, buffers, nodes, and the calls of telegrad's own functions.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest

from telegrad import dist_autograd, rpc
from telegrad.autograd import Tensor, tensor
from telegrad.dist_autograd.seams import RecvFunction, SendFunction
from telegrad.testing import Cluster
from telegrad.transport import Exchange
from telegrad.wire import Envelope

LENGTH = 16  # of each tensor
# Calls of functions of telegrad for one tensor of a step: it goes there and comes back, and so does
# its gradient. They are 162; they were 271 when each Tensor was a document of its own.
MOST_CALLS = 180


def back(tensors: list[Tensor]) -> list[Tensor]:
    return tensors


def step(count: int) -> None:
    given = [tensor(np.full(LENGTH, float(i)), requires_grad=True) for i in range(count)]
    ones = [np.ones(LENGTH) for _ in range(count)]
    with dist_autograd.context() as context_id:
        found = rpc.rpc_sync("worker1", back, (given,))
        dist_autograd.backward(context_id, found, ones)
        gradients = dist_autograd.get_gradients(context_id)
    assert len(gradients) == count
    np.testing.assert_array_equal(gradients[given[-1]].data, ones[-1])


def calls_of_steps(called: Counter[tuple[int, str]], counts: list[int]) -> list[int]:
    found = []
    for count in counts:
        step(count)  # whatever is done once is done
        before = called.copy().total()
        step(count)
        found.append(called.copy().total() - before)
    return found


@pytest.mark.long
@pytest.mark.skipif(sys.gettrace() is not None, reason="a debugger or coverage counts, too")
def test_function_calls_for_a_tensor_are_few_and_as_many_for_each(
    called: Counter[tuple[int, str]],
) -> None:
    with Cluster(2) as cluster:
        few, some, many = cluster.call(0, calls_of_steps, called, [50, 150, 450])
    first, second = (some - few) / 100, (many - some) / 300
    assert second < MOST_CALLS
    assert second < 1.1 * first + 5.0


def test_messages_and_nodes_are_as_many_for_any_number_of_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: Counter[str] = Counter()
    genuine = Exchange.post

    def counting(exchange: Exchange, to: Any, envelope: Envelope, **how: Any) -> None:
        if envelope.kind.partition(".")[0] in ("rpc", "autograd"):
            seen[envelope.kind] += 1
            seen["buffers"] += len(envelope.buffers)
        genuine(exchange, to, envelope, **how)

    monkeypatch.setattr(Exchange, "post", counting)
    for node in (SendFunction, RecvFunction):

        def making(self: Any, *given: Any, _of: Any = node.__init__, **by: Any) -> None:
            seen[type(self).__name__] += 1
            _of(self, *given, **by)

        monkeypatch.setattr(node, "__init__", making)
    found = []
    with Cluster(2) as cluster:
        for count in (1, 10, 300):
            seen.clear()
            cluster.call(0, step, count)
            found.append(Counter(seen))
    assert [each.pop("buffers") for each in found] == [4, 40, 1200]
    # One there, one back; a begin does not wait for a graph of more nodes than a few, and then the
    # callee claims its answers.
    assert min([each.pop("autograd.pass") for each in found]) == 2
    assert found[0] == found[1] == found[2]
    assert found[0]["SendFunction"] == found[0]["RecvFunction"] == 2
