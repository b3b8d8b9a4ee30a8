"""Streams of the methods of an RRef's value: generators that run on its owner.

    rref.stream   {rref, method, args, kwargs, stream}   a request; from there on it is a stream as
                                                         in `stream/messages`

The permission to call is that of any method called through an RRef; the items are those of any
stream.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from telegrad.rpc.base.served_call import ServedCall
from telegrad.rpc.call.bare_calls import ARGUMENTS
from telegrad.rpc.call.user_call import Prepare, UserCall
from telegrad.rpc.future.future import Future
from telegrad.rpc.rref.calls import Method, RRefCalls
from telegrad.rpc.rref.serving import RRefServing
from telegrad.rpc.stream.messages import read_number
from telegrad.rpc.stream.reading import StreamReader, StreamReaders
from telegrad.rpc.stream.serving import StreamProducers
from telegrad.rpc.stream.stream import Stream
from telegrad.rpc.stream.stream import attach_to as attach_streams
from telegrad.types import WorkerInfo
from telegrad.wire import read_head

if TYPE_CHECKING:
    from telegrad.rpc.agent.core import AgentCore

METHOD_STREAM = "rref.stream"


def open_method_stream(calls: RRefCalls, method: Method, timeout: float | None) -> Stream[Any]:
    """Asks the owner of a value to run one of its methods, a generator.

    The fork of the RRef is kept until the stream has ended.

    The `timeout` is for each next item; None for the default.

    Raises:
        EncodeError: An argument cannot travel; nothing was sent.
        CallTimeoutError: The call that this code serves has no time left.
        NotInitializedError: The agent was shut down.
        InvalidUseError: The RRef was released.
    """
    reference, label = method.reference, method.label

    def send(reader: StreamReader) -> Future[Any]:
        payload = {**method.payload(), "stream": reader.number}
        return calls.send(
            reference, METHOD_STREAM, payload, label, math.inf, reader.record, reader.fail
        )

    readers = calls.registry.agent.attachments[StreamReaders]
    return Stream(readers.open(reference.owner, label, calls.limit(timeout), send))


def attach_to(agent: AgentCore) -> None:
    """For the library: gives an agent its streams, those of its RRefs too; after it has RRefs."""
    attach_streams(agent)
    serving, producers = agent.attachments[RRefServing], agent.attachments[StreamProducers]

    def produce(caller: WorkerInfo, payload: object, call: UserCall) -> UserCall:
        number = read_number(payload)
        generator = UserCall(call.func, call.args, call.kwargs, name=call.name)
        return producers.produce(caller, number, generator)

    def admit(call: ServedCall, document: bytes) -> Prepare:
        return serving.admit(call, read_head(document, ARGUMENTS), produce)

    agent.serving.serve_named(METHOD_STREAM, admit)
