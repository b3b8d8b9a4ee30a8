"""What gRPC reads while it is imported is set by then, unless the user has set it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from telegrad.transport.grpc.environment import set_grpc_environment

if TYPE_CHECKING:
    from tests.conftest import Programs

IMPORTS = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print(*(os.environ.get(f"GRPC_{name}") for name in sys.argv[2:]))

sys.meta_path.insert(0, Watch())
__import__(sys.argv[1])
"""


@pytest.mark.parametrize("module", ["telegrad.rpc", "telegrad.transport.grpc.errors"])
@pytest.mark.parametrize(
    ("own", "found"),
    [
        ({}, "0 ERROR"),
        ({"GRPC_ENABLE_FORK_SUPPORT": "1", "GRPC_VERBOSITY": "DEBUG"}, "1 DEBUG"),
        ({"GRPC_TRACE": "http"}, "0 None"),
    ],
)
def test_what_grpc_finds(module: str, own: dict[str, str], found: str, programs: Programs) -> None:
    asked = ["ENABLE_FORK_SUPPORT", "VERBOSITY"]
    output = programs.run(
        ["python", programs.script(IMPORTS), module, *asked], env=own, executed=True
    )
    assert output.splitlines() == [found]


@pytest.mark.parametrize(
    ("own", "found"),
    [
        ({}, "-event_engine_client,-event_engine_listener"),
        ({"GRPC_EXPERIMENTS": ""}, ""),
        ({"GRPC_EXPERIMENTS": "tcp_rcv_lowat"}, "tcp_rcv_lowat"),
    ],
)
def test_the_event_engine_is_off(own: dict[str, str], found: str, programs: Programs) -> None:
    asked = ["telegrad.rpc", "EXPERIMENTS"]
    output = programs.run(["python", programs.script(IMPORTS), *asked], env=own, executed=True)
    assert output.splitlines() == [found]


KNOWS = """
import telegrad.rpc
import grpc

grpc.insecure_channel("127.0.0.1:1").close()
"""


def test_grpc_knows_what_is_switched_off(programs: Programs) -> None:
    """It would say so: gRPC names what it does not know, as an error."""
    command = ["python", "-c", KNOWS + "print(grpc.__name__)"]
    assert programs.run(command, executed=True) == "grpc\n"


def test_nothing_is_set_after_the_import_of_grpc(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "telegrad.transport")
    environ: dict[str, str] = {}
    set_grpc_environment(environ, imported={"grpc"})
    assert environ == {}
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert "set GRPC_ENABLE_FORK_SUPPORT=0 before either is imported" in record.getMessage()


def test_nothing_is_said_where_the_user_has_chosen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "telegrad.transport")
    set_grpc_environment({"GRPC_ENABLE_FORK_SUPPORT": "1"}, imported={"grpc"})
    assert caplog.records == []
