"""The main function of a cluster's process: joins the job and runs the functions it gets."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import multiprocessing.spawn
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from telegrad import rpc
from telegrad.compose import make_agent
from telegrad.rendezvous import parse_init_method, secured
from telegrad.rpc.seams import CallablePolicy, set_process_agent
from telegrad.testing.channel import Channel
from telegrad.testing.fault_plan import FaultPlan
from telegrad.testing.faults import FaultyNetwork, FaultyTransport
from telegrad.transport import GrpcTransport, Transport, find_tls, find_token


def main(descriptor: int) -> None:
    """Runs a worker of a cluster.

    Args:
        descriptor: The end of a `multiprocessing.Pipe`. First comes what multiprocessing sends a
            process that it spawns, then the options and the faults, then the requests.
    """
    pipe = Connection(descriptor)
    process = multiprocessing.current_process()
    process._inheriting = True  # type: ignore[attr-defined]  # for the check of unguarded scripts
    multiprocessing.spawn.prepare(pipe.recv())
    del process._inheriting  # type: ignore[attr-defined]
    options, faults = pipe.recv()
    serve(pipe, options, faults)


def serve(pipe: Connection, options: rpc.RpcOptions, faults: FaultPlan | None = None) -> None:
    """Serves requests until told to leave; the end of the pipe ends the process at once."""
    channel = Channel(pipe)
    leave = threading.Event()

    def read_requests() -> None:
        with suppress(EOFError, OSError):
            while True:
                request = channel.receive()
                threading.Thread(target=answer, args=request, daemon=True).start()
        os._exit(1)  # the test's process is gone

    def answer(header: Sequence[Any], read: Callable[[], Sequence[Any]]) -> None:
        number, verb, name = header
        try:
            value, error = _do(verb, name, read, options, faults), None
        except BaseException as raised:
            value, error = None, raised
        channel.answer(number, error, value)
        if verb == "leave":
            leave.set()

    threading.Thread(target=read_requests, name="cluster-control", daemon=True).start()
    leave.wait()


def over_faults(inner: Transport, faults: FaultPlan | None) -> Transport:
    """Returns a transport over a network of its own with the plan's faults, if there is a plan."""
    return inner if faults is None else FaultyTransport(inner, FaultyNetwork(faults))


def run_function(func: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Runs a function; one that is `async def` on a loop of its own."""
    result = func(*args)
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def _do(
    verb: str,
    name: str,
    read: Callable[[], Sequence[Any]],
    options: rpc.RpcOptions,
    faults: FaultPlan | None,
) -> Any:
    if verb == "join":
        if faults is None:
            rpc.init_rpc(options=options)
        else:
            _join_over_faults(options, FaultyNetwork(faults))
    elif verb == "import":
        _import(name)
    elif verb == "call":
        _import(name)
        return run_function(CallablePolicy("importable").resolve(name), read())
    elif verb == "leave":
        rpc.shutdown()
    return None


def _join_over_faults(options: rpc.RpcOptions, network: FaultyNetwork) -> None:
    """Joins as `init_rpc` does, but over a faulty network."""
    address = parse_init_method(None, rank=None, world_size=None, environ=os.environ)
    name = address.name or f"worker{address.rank}"
    tls = None if options.insecure else find_tls(options.tls, os.environ, name)
    inner = GrpcTransport(tls=tls, insecure=options.insecure)
    agent = make_agent(
        secured(address, mutual=tls is not None, insecure=options.insecure),
        name=name,
        options=options,
        token=None if options.insecure else find_token(options.token, os.environ),
        transports=[FaultyTransport(inner, network, name=name)],
    )
    agent.attachments.attach(network)
    set_process_agent(agent)


def _import(name: str) -> None:
    module = name.partition(":")[0]
    if module != "__main__":
        importlib.import_module(module)
