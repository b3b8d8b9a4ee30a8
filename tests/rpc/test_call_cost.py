"""How many functions run for one call, in Python and in C: what a call costs where time cannot be told.

Right after a thread was woken each of them takes three times what it takes in a loop of calls.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from telegrad import rpc
from telegrad.rpc import seams
from telegrad.rpc.call.serving import REPLY
from telegrad.rpc.pool.inbox import Inbox
from telegrad.transport.session.connection import Connection
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, write_body
from tests.rpc import remote_code
from tests.rpc.conftest import MakeJob

# Between the verb and the transport, and back, for a call without arguments or value; it was 200.
# Nine of them, in C, mark the critical sections, and ask for the marks; one cancels what is left.
MOST_AT_THE_CALLER = 80


def test_the_callers_end_of_an_empty_call(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(2)
    agent, peer = job.agents[0], job.agents[1].info

    def answer(connection: Connection, envelope: Envelope, *, rides: bool = False) -> None:
        reply = write_body(REPLY, None, reply=True)
        reply.call = envelope.call
        functions.append("(the transport)")
        inboxes[agent.info.name](peer, reply)

    functions: list[str] = []
    inboxes: dict[str, Callable[[WorkerInfo, Envelope], None]] = {}
    on_envelope = Inbox.on_envelope

    def noted(inbox: Inbox, sender: WorkerInfo, envelope: Envelope) -> None:
        inboxes["w0" if sender == peer else "w1"] = partial(on_envelope, inbox)
        on_envelope(inbox, sender, envelope)

    with seams.use_agent(agent), monkeypatch.context() as patch:
        patch.setattr(Inbox, "on_envelope", noted)
        rpc.rpc_sync("w1", remote_code.who)

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            functions.append(frame.f_code.co_qualname)
        elif event == "c_call":
            functions.append(argument.__qualname__)

    with seams.use_agent(agent), monkeypatch.context() as patch:
        patch.setattr(Connection, "post", answer)
        for _ in range(3):
            rpc.rpc_sync("w1", remote_code.who)
        functions.clear()
        gc.collect()
        gc.disable()  # a collection in the midst of it would count
        sys.setprofile(note)
        try:
            rpc.rpc_sync("w1", remote_code.who)
        finally:
            sys.setprofile(None)
            gc.enable()
    assert "(the transport)" in functions
    assert len(functions) <= MOST_AT_THE_CALLER, "\n".join(functions)
