"""Options and statistics are values, checked when made."""

from __future__ import annotations

import dataclasses
import math
import pickle
from typing import Any

import pytest

from telegrad.rpc import Limits, RpcOptions, TlsOptions, WorkerInfo


def test_defaults() -> None:
    options = RpcOptions()
    assert (options.timeout, options.init_timeout, options.lost_after) == (60.0, 300.0, 10.0)
    assert (options.num_threads, options.port, options.callables) == (16, 0, "project")
    assert options.limits == Limits()
    assert RpcOptions(timeout=math.inf).timeout == math.inf
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.timeout = 3.0  # type: ignore[misc]


def decide(caller: WorkerInfo, module: str, name: str) -> bool:
    return True


async def later(caller: WorkerInfo, module: str, name: str) -> bool:
    return True


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"timeout": 0}, ValueError, r"RpcOptions\.timeout.*math\.inf"),
        ({"timeout": True}, TypeError, "number of seconds"),
        ({"init_timeout": -1}, ValueError, "init_timeout"),
        ({"lost_after": "10"}, TypeError, "lost_after"),
        ({"num_threads": 0}, ValueError, "from 1 to 1000"),
        ({"num_threads": 2.0}, TypeError, "integer"),
        ({"port": 70000}, ValueError, "65535"),
        ({"port": True}, TypeError, r"a range such as range\(29500, 29600\)"),
        ({"port": 1.5}, TypeError, "0 for any that is free, or None to open none"),
        ({"port": "29500-"}, ValueError, "'29500-29599'"),
        ({"port": "29500-29400"}, ValueError, "has no port in it"),
        ({"port": "0-10"}, ValueError, "1 to 65535"),
        ({"port": range(65530, 65540)}, ValueError, "1 to 65535"),
        ({"cuda_ipc": 1}, TypeError, "RpcOptions.cuda_ipc must be True or False"),
        ({"port": None, "advertise": "h"}, ValueError, "port=None opens no port, .*advertise='h'"),
        ({"port": None, "bind": "::1"}, ValueError, "bind='::1' has no meaning"),
        ({"port": None, "bind": "unix"}, ValueError, "bind='unix' has no meaning"),
        ({"bind": "unix", "port": 5}, ValueError, "opens a Unix socket in place of a TCP port"),
        ({"bind": "unix:///d", "advertise": "a"}, ValueError, "advertise='a' has no meaning"),
        ({"bind": "unix", "direct": "tcp"}, ValueError, "direct='tcp' has no meaning; give one"),
        ({"bind": "unix", "direct": False}, ValueError, "direct=False has no meaning; give one"),
        (
            {"bind": "unix:///d", "tls": TlsOptions(ca="a", certificate="b", key="c")},
            ValueError,
            "so that tls=.* has no meaning",
        ),
        ({"direct": None}, TypeError, r"True, False, 'local', 'tcp', or a range of ports"),
        ({"direct": 29600}, TypeError, r"'tcp', or a range of ports such as range\(29600"),
        ({"direct": 1}, TypeError, "RpcOptions.direct must be True"),
        ({"direct": "unix"}, ValueError, "RpcOptions.direct must be True, False, 'local', 'tcp'"),
        ({"direct": "29600-"}, ValueError, "RpcOptions.direct must be True, False"),
        ({"direct": range(65530, 65540)}, ValueError, "RpcOptions.direct=.* 1 to 65535"),
        ({"direct": range(0)}, ValueError, "has no port in it"),
        ({"direct": "29600-29699", "port": None}, ValueError, "direct='29600-29699' has no"),
        ({"direct": range(5, 9), "bind": "unix"}, ValueError, "direct=.* has no meaning"),
        ({"bind": ""}, TypeError, "bind"),
        (
            {"advertise": "grpc://h:1"},
            ValueError,
            "RpcOptions.advertise: 'grpc://h:1' is no address",
        ),
        ({"advertise": "h:70000"}, ValueError, "from 1 to 65535"),
        ({"advertise": "h:4000", "port": "4000-4010"}, ValueError, "give that port"),
        ({"token": 3}, TypeError, "token"),
        ({"token": "x" * 20, "insecure": True}, ValueError, "one or the other"),
        ({"callables": "everything"}, ValueError, "project"),
        ({"callables": 3}, TypeError, "patterns"),
        ({"callables": later}, TypeError, "must not be async"),
        ({"limits": {"pending_bytes": 3}}, TypeError, r"rpc\.Limits\(...\)"),
        ({"timout": 3}, TypeError, "unexpected keyword"),
        ({"start_when": 0}, ValueError, "from 1 to"),
        ({"start_when": True}, TypeError, "a number of workers or a list of names"),
        ({"start_when": "ps"}, TypeError, r"write \['ps'\]"),
        ({"start_when": []}, ValueError, "empty list; to wait for nobody write 1"),
        ({"start_when": ["no blanks"]}, ValueError, "worker name 'no blanks'"),
        ({"start_when": 1.5}, TypeError, "a number of workers"),
        ({"device_maps": [("w1", {0: 1})]}, TypeError, r"such as \{'worker1': \{0: 1\}\}"),
        ({"device_maps": {1: {0: 1}}}, TypeError, "a worker's name as its key, not 1"),
        ({"device_maps": {"w 1": {0: 1}}}, ValueError, "RpcOptions.device_maps: worker name 'w 1'"),
        ({"device_maps": {"w1": 1}}, TypeError, r"device_maps\['w1'\] must be a dict .* not 1"),
        ({"device_maps": {"w1": {"cpu": 0}}}, TypeError, "a key of .* in host memory stays there"),
        ({"device_maps": {"w1": {True: 0}}}, TypeError, "a key of .* must be an integer"),
        ({"device_maps": {"w1": {-1: 0}}}, ValueError, "from 0 to 999"),
        ({"device_maps": {"w1": {0: "cuda:1"}}}, TypeError, r"\[0\] must be the number of a GPU"),
        ({"device_maps": {"w1": {0: -1}}}, ValueError, r"device_maps\['w1'\]\[0\] must be from 0"),
        ({"device_maps": {"w1": {0: None}}}, TypeError, "must be an integer, not None"),
    ],
)
def test_wrong_options(wrong: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        RpcOptions(**wrong)


@pytest.mark.parametrize(
    ("port", "ports"),
    [
        (0, (0,)),
        (29500, (29500,)),
        ("29500", range(29500, 29501)),
        ("29500-29502", range(29500, 29503)),
        (" 29500 - 29502 ", range(29500, 29503)),
        (range(29500, 29600, 10), range(29500, 29600, 10)),
        (range(29502, 29500, -1), range(29502, 29500, -1)),
    ],
)
def test_ports(port: int | range | str, ports: object) -> None:
    assert RpcOptions(port=port).ports == ports


@pytest.mark.parametrize(
    ("direct", "ports"),
    [
        (True, (0,)),
        (False, ()),
        ("local", ()),
        ("tcp", (0,)),
        ("29600", range(29600, 29601)),
        (" 29600 - 29602 ", range(29600, 29603)),
        (range(29600, 29700, 10), range(29600, 29700, 10)),
    ],
)
def test_direct_ports(direct: bool | range | str, ports: object) -> None:
    assert RpcOptions(direct=direct).direct_ports == ports
    assert RpcOptions(direct=direct).reaches_locally is (direct not in (False, "tcp"))
    assert RpcOptions().direct_ports == (0,)


@pytest.mark.parametrize(
    ("direct", "others"),
    [
        *((direct, {"port": None}) for direct in (True, False, "local", "tcp")),
        *((direct, {"bind": "unix"}) for direct in (True, "local")),
    ],
)
def test_who_opens_no_port_may_dial_direct_ones(direct: bool | str, others: dict[str, Any]) -> None:
    assert RpcOptions(direct=direct, **others).direct == direct


def test_device_maps() -> None:
    maps: dict[str, dict[int, int | str]] = {"worker1": {0: 1, 1: "cpu"}}
    options = RpcOptions(device_maps=maps)
    maps["worker1"][0] = 2
    maps["worker2"] = {}
    assert options.device_maps == {"worker1": {0: 1, 1: "cpu"}}
    assert repr(options.device_maps) == "{'worker1': {0: 1, 1: 'cpu'}}"
    with pytest.raises(TypeError):
        options.device_maps["worker1"][0] = 2  # type: ignore[index]
    same = [dataclasses.replace(options, token=None), pickle.loads(pickle.dumps(options))]
    assert same == [options, options]
    assert {hash(each) for each in same} == {hash(options)}
    assert RpcOptions().device_maps == {}


def test_start_when() -> None:
    assert RpcOptions(start_when=["ps", "w0"]).waits_for == ("ps", "w0")


def test_callables() -> None:
    assert RpcOptions(callables=decide).callables is decide
    assert RpcOptions(callables="exposed").callables == "exposed"
    assert RpcOptions(callables=["mypkg.*"]).callables == ("mypkg.*",)  # frozen
