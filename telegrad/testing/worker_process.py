"""The main function of a cluster's spawned process: joins the job and runs what it is told."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from telegrad import rpc
from telegrad.testing.channel import Channel
from telegrad.wire import CallablePolicy

__all__ = ["run_function", "serve"]


def serve(pipe: Connection, environment: dict[str, str], options: rpc.RpcOptions | None) -> None:
    """Serves requests until told to leave; the end of the pipe ends the process at once."""
    os.environ.update(environment)
    channel = Channel(pipe)
    leave = threading.Event()
    reader = threading.Thread(
        target=_read, args=(channel, options, leave), name="cluster-control", daemon=True
    )
    reader.start()
    leave.wait()


def run_function(func: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Runs a function; one that is `async def` on a loop of its own."""
    result = func(*args)
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def _read(channel: Channel, options: rpc.RpcOptions | None, leave: threading.Event) -> None:
    try:
        while True:
            header, read = channel.receive()
            threading.Thread(
                target=_answer, args=(channel, header, read, options, leave), daemon=True
            ).start()
    except (EOFError, OSError):
        os._exit(1)  # whoever told this process what to do is gone


def _answer(
    channel: Channel,
    header: Sequence[Any],
    read: Callable[[], Sequence[Any]],
    options: rpc.RpcOptions | None,
    leave: threading.Event,
) -> None:
    number, verb, name = header
    try:
        value, error = _do(verb, name, read, options), None
    except BaseException as raised:
        value, error = None, raised
    channel.answer(number, error, value)
    if verb == "leave":
        leave.set()


def _do(
    verb: str, name: str, read: Callable[[], Sequence[Any]], options: rpc.RpcOptions | None
) -> Any:
    if verb == "join":
        rpc.init_rpc(options=options)
    elif verb == "import":
        _import(name)
    elif verb == "call":
        _import(name)
        return run_function(CallablePolicy("importable").resolve(name), read())
    elif verb == "leave":
        rpc.shutdown()
    return None


def _import(name: str) -> None:
    module = name.partition(":")[0]
    if module != "__main__":
        importlib.import_module(module)
