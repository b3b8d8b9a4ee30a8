"""Device maps: arrays of a GPU arrive on the GPU of the receiver that the sender has chosen."""

from __future__ import annotations

import logging
import sys
from typing import Any, cast

import msgpack
import numpy as np
import pytest

from telegrad import arrays, dist_autograd, rpc
from telegrad.autograd import RowSparse, Tensor, as_tensor, ops
from telegrad.dist_autograd.functions import SendFunction
from telegrad.errors import DecodeError
from telegrad.rpc import RpcOptions
from telegrad.testing import Cluster
from telegrad.wire import decode, describe, encode, land, place_by, rebuild
from tests.gpu.comparison import host

pytestmark = pytest.mark.usefixtures("three_gpus")

THERE = {0: 1, 1: 2, 2: "cpu"}
BACK = {0: 2, 1: 1}


def cluster_with(**maps: dict[int, Any]) -> Cluster:
    """Two workers; each of them has all the maps, and uses that of the other one's name."""
    return Cluster(2, options=RpcOptions(device_maps=maps))


def devices_of(*values: Any) -> list[str]:
    """Where arrays, and the arrays of Tensors, are."""
    return [arrays.device_of(v.data if isinstance(v, Tensor) else v) for v in values]


def on_gpu(number: int, value: float = 1.0) -> Any:
    return arrays.to_device(np.full(3, value), f"cuda:{number}")


def on_all() -> list[Any]:
    """An array on each of the GPUs, and one in host memory."""
    return [*(on_gpu(number, number) for number in range(3)), np.full(3, 3.0)]


@rpc.idempotent
def pick(values: list[Any], number: int) -> tuple[list[str], list[float], Any]:
    """Says where the values arrived and what they are; answers with one of GPU `number`."""
    found = [float(host(value)[0]) for value in values]
    return devices_of(*values), found, on_gpu(number, 7.0)


def asked(number: int = 0, to: str = "worker1") -> tuple[list[str], str]:
    """Where arrays of all GPUs arrived, and where the answer did."""
    there, found, answer = rpc.rpc_sync(to, pick, (on_all(), number))
    assert found == [0.0, 1.0, 2.0, 3.0]
    assert float(host(answer)[0]) == 7.0
    return there, devices_of(answer)[0]


def test_without_a_map_all_arrive_on_the_first_gpu() -> None:
    with Cluster(2) as cluster:
        assert cluster.call(0, asked, 2) == (["cuda:0", "cuda:0", "cuda:0", "cpu"], "cuda:0")


def test_a_request_goes_by_the_map_of_the_caller_and_its_reply_by_none() -> None:
    with cluster_with(worker1=THERE) as cluster:
        assert cluster.call(0, asked, 1) == (["cuda:1", "cuda:2", "cpu", "cpu"], "cuda:0")


def test_a_reply_goes_by_the_map_of_the_callee() -> None:
    with cluster_with(worker0=BACK, worker1=THERE) as cluster:
        assert cluster.call(0, asked, 0) == (["cuda:1", "cuda:2", "cpu", "cpu"], "cuda:2")
        assert cluster.call(1, asked, 0, "worker0") == (
            ["cuda:2", "cuda:1", "cuda:0", "cpu"],
            "cuda:1",
        )


def test_a_call_to_oneself_goes_by_the_own_map() -> None:
    with cluster_with(worker0=BACK) as cluster:
        assert cluster.call(0, asked, 1, "worker0")[1] == "cuda:1"
        assert cluster.call(1, asked, 1, "worker1")[1] == "cuda:0"


def asked_of_all() -> list[list[str]]:
    values = on_all()
    calls = [(to, pick, (values, 0)) for to in ("worker1", "worker0", "worker1")]
    return [there for there, _, _ in rpc.gather(calls).wait()]


def test_what_is_encoded_once_goes_to_each_by_its_own_map() -> None:
    with cluster_with(worker1=THERE) as cluster:
        assert cluster.call(0, asked_of_all) == [
            ["cuda:1", "cuda:2", "cpu", "cpu"],
            ["cuda:0", "cuda:0", "cuda:0", "cpu"],
            ["cuda:1", "cuda:2", "cpu", "cpu"],
        ]


def asked_with_retries() -> list[str]:
    value = on_gpu(0)
    there, found, _ = rpc.rpc_sync("worker1", pick, ([value], 0), retry=2)
    assert found == [1.0]
    return list(there)


def test_a_call_that_may_be_sent_again_goes_by_the_map() -> None:
    with cluster_with(worker1=THERE) as cluster:
        assert cluster.call(0, asked_with_retries) == ["cuda:1"]


def counted() -> Any:
    for number in range(3):
        yield on_gpu(number)


def streamed() -> list[str]:
    return devices_of(*rpc.stream("worker1", counted))


def test_items_of_a_stream_go_by_the_map_of_who_sends_them() -> None:
    with cluster_with(worker0=BACK) as cluster:
        assert cluster.call(0, streamed) == ["cuda:2", "cuda:1", "cuda:0"]


# -- gradients ------------------------------------------------------------------------------------


def tripled(x: Tensor) -> Tensor:
    return x * 3.0


def rows_of(table: Tensor) -> Tensor:
    return cast("Tensor", ops.layers.embedding(table, [1, 1], sparse=True))


def gradients() -> list[str]:
    """Sends a Tensor of each GPU to the other worker and its gradient back; says where it was."""
    found = []
    for number in range(3):
        x = as_tensor(on_gpu(number)).requires_grad_()
        with dist_autograd.context() as context_id:
            y = rpc.rpc_sync("worker1", tripled, (x,))
            found += devices_of(y)
            dist_autograd.backward(context_id, [y.sum()])
            gradient = dist_autograd.get_gradients(context_id)[x]
        assert devices_of(gradient) == [f"cuda:{number}"]
        np.testing.assert_array_equal(host(gradient), np.full(3, 3.0))
    return found


@pytest.fixture
def arriving(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """From whom gradients arrive and where, before they go home to their Tensors."""
    found: list[tuple[str, list[str]]] = []
    backward = SendFunction.backward

    def seen(node: SendFunction, given: Any) -> Any:
        parts: list[Any] = []
        for each in given:
            parts += [each.rows, each.values] if isinstance(each, RowSparse) else [each]
        found.append((node.peer.name, devices_of(*parts)))
        return backward(node, given)

    monkeypatch.setattr(SendFunction, "backward", seen)
    return found


@pytest.mark.parametrize(
    ("maps", "there", "back"),
    [
        ({}, "cuda:0", "cuda:0"),
        ({"worker0": {0: 2}}, "cuda:0", "cuda:2"),
        ({"worker1": {0: 1}, "worker0": {0: "cpu"}}, "cuda:1", "cpu"),
    ],
)
def test_gradients_go_by_the_map_and_end_where_their_tensors_are(
    maps: dict[str, Any], there: str, back: str, arriving: list[tuple[str, list[str]]]
) -> None:
    with cluster_with(**maps) as cluster:
        assert cluster.call(0, gradients) == [back] * 3
    # Of what worker0 sent, and of what worker1 answered: `y.sum()` is computed by worker0.
    assert {place[0] for peer, place in arriving if peer == "worker1"} == {back}
    assert {place[0] for peer, place in arriving if peer == "worker0"} <= {there, "cpu"}


def gradients_of_rows() -> None:
    table = as_tensor(arrays.to_device(np.zeros((4, 2)), "cuda:1")).requires_grad_()
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [rpc.rpc_sync("worker1", rows_of, (table,)).sum()])
        gradient: Any = dist_autograd.get_gradients(context_id)[table]
    assert isinstance(gradient, RowSparse)
    assert devices_of(gradient.rows, gradient.values) == ["cuda:1", "cuda:1"]
    assert host(gradient.to_dense()).tolist() == [[0, 0], [2, 2], [0, 0], [0, 0]]


def test_gradients_of_some_rows(arriving: list[tuple[str, list[str]]]) -> None:
    with cluster_with(worker0={0: 2}) as cluster:
        cluster.call(0, gradients_of_rows)
    assert ("worker1", ["cuda:2", "cuda:2"]) in arriving


# -- what is not there ----------------------------------------------------------------------------


def test_a_gpu_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    with cluster_with(worker1={0: 7, 1: 1, 2: 9}) as cluster, caplog.at_level(logging.WARNING):
        for _ in range(3):
            there, _ = cluster.call(0, asked)
            assert there == ["cuda:0", "cuda:1", "cuda:0", "cpu"]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "worker0 sends arrays to GPU 7 of worker1, which cannot be had" in said[0]
    assert "there is no device 'cuda:7'" in said[0]
    assert "GPU 9 of worker1" in said[1]


def test_a_receiver_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    missed: list[tuple[int, str]] = []
    encoded = encode([on_gpu(0), as_tensor(on_gpu(1, 2.0))])
    metadata, buffers = describe(encoded.externals, place_by({0: 1}))
    monkeypatch.delitem(sys.modules, "cupy")
    externals = rebuild(
        metadata,
        [bytearray(each) for each in buffers],
        land=lambda array, number: land(array, number, lambda *said: missed.append(said)),
    )
    array, held = decode(encoded.document, externals)
    assert type(array) is type(held.data) is np.ndarray
    assert (array.tolist(), held.tolist()) == ([1.0, 1.0, 1.0], [2.0, 2.0, 2.0])
    assert missed == [(1, "CuPy is not imported")]


@pytest.mark.parametrize("tag", ["cuda", "cuda:", "cuda:-1", "cuda:01", "cuda:1000", "cuda:x"])
def test_a_tag_that_names_no_gpu(tag: str) -> None:
    array = ["<f8", "C", 1]
    for line in ([tag, array, 1], ["tensor", [tag, array], 1]):
        with pytest.raises(DecodeError, match=r"unknown type|not an array"):
            rebuild(msgpack.packb([line]), [bytearray(8)])
