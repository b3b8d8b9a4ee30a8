"""The codec between values and envelopes: documents, the chain of interceptors, the externals.

value ──encode──▶ document + externals ──outgoing──▶ headers ──describe──▶ Envelope
value ◀──decode── document + externals ◀─incoming── headers ◀──rebuild─── Envelope
"""

from __future__ import annotations

import contextlib
import math
import operator
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar, final

import numpy as np

from telegrad.errors import DecodeError, EncodeError
from telegrad.rpc.base.call_record import CallRecord
from telegrad.rpc.base.contained import Contained
from telegrad.rpc.base.interceptor import Interceptor, Message
from telegrad.rpc.call.device_maps import Devices
from telegrad.transport import get_logger
from telegrad.types import WorkerInfo
from telegrad.wire import (
    DEFAULT_LIMITS,
    LENT_BYTES,
    NO_MEMORY,
    Buffer,
    DecodeLimits,
    Encoded,
    Envelope,
    Memory,
    Place,
    decode,
    describe,
    describe_lines,
    encode,
    first_gpu,
    pack_lines,
    read_head,
    rebuild,
    write_body,
)

# -- errors of messages that cannot be decoded: worker, sender and call --------------------------

E = TypeVar("E", bound=DecodeError | MemoryError)

LONGEST_NAME = 200  # characters; the sender of the message may have written anything

# In the path to an argument the body of the message is no step: `args[0].x`.
_BODY = re.compile(r"\(at value\['(args|kwargs)'\]")


def unreadable(error: E, worker: str, peer: WorkerInfo, function: str, envelope: Envelope) -> E:
    """Returns an error that names both ends and the call, besides the fault.

    Args:
        error: The fault; its word "here" means `worker`.
        worker: The worker that cannot read the message.
        peer: The sender.
        function: The name of the function, as far as it is known already.
        envelope: The message.
    """
    if envelope.reply:
        words = f"worker {worker!r} cannot read the value of {function} from {peer.name!r}"
        return type(error)(f"{words}: {error}")
    called = _called(envelope) or function
    words = f"worker {worker!r} cannot read the arguments of {called} from the caller {peer.name!r}"
    problem = _BODY.sub(r"(at \1", str(error))
    return type(error)(f"{words}: {problem}")


def _called(envelope: Envelope) -> str:
    """Returns the name in the head of a request; empty where it has none."""
    try:
        head = read_head(envelope.document, "args")
    except DecodeError:
        return ""
    name = head.get("func") or head.get("method")
    return name[:LONGEST_NAME] if isinstance(name, str) else ""


# ------------------------------------------------------------------------------------------------

_NONE: Final = encode(None)  # the value of many calls
_NOTHING: Final = _NONE.document
_ARRAYS: Final = frozenset({np.ndarray})  # externals without a meaning to any interceptor
_BYTES: Final = frozenset({bytes})  # buffers that nobody can write into

_bytes_of: Final[Callable[[Any], int]] = operator.attrgetter("nbytes")

_logger = get_logger(__name__)


def _nothing() -> None:
    pass


@dataclass(slots=True)  # frozen ones take three times as long to make
class Sealed:
    """A message that is ready to be posted, and the means to take it back.

    Attributes:
        envelope: The envelope to post.
        take_back: Tells the interceptors that it is known not to have been handed over.
        memory: The memory that settles its buffers before it is posted; None if nothing is to be
            settled.
    """

    envelope: Envelope
    take_back: Callable[[], None] = _nothing
    memory: Memory | None = None


@final
class Prepared:
    """A value that is encoded once for any number of messages, and its arrays copied once.

    Interceptors see each message all the same: the parts that differ from one destination to the
    next, as the forks of RRefs, are theirs and travel in headers.

    Args:
        encoded: The value as it was; its arrays are copied when the first message is sealed.
    """

    __slots__ = ("_kept", "encoded")

    def __init__(self, encoded: Encoded) -> None:
        self.encoded = encoded
        self._kept: dict[int, tuple[list[object], list[Buffer]]] = {}  # by the id of an external

    @staticmethod
    def of(value: object) -> Prepared:
        """Encodes a value.

        Raises:
            EncodeError: The value cannot travel.
        """
        return Prepared(encode(value, name=None))

    def freeze(self) -> Prepared:
        """Copies its arrays, unless that was done: their owner may write into them afterwards."""
        for each in self.encoded.externals:
            if id(each) not in self._kept:
                with contextlib.suppress(EncodeError):  # interceptors replace it, or sealing fails
                    lines, own = describe_lines([each])
                    self._kept[id(each)] = lines, _shared(own)
        return self

    def describe(
        self, externals: list[object], place: Place = first_gpu
    ) -> tuple[bytes, list[Buffer]]:
        """Describes the externals of one message; again only those that interceptors replaced.

        Args:
            externals: The externals after the interceptors.
            place: Chooses the device at which arrays of a GPU arrive.
        """
        self.freeze()
        described = [self._kept.get(id(each)) or describe_lines([each]) for each in externals]
        lines = [line for lines, _ in described for line in lines]
        return pack_lines(lines, place), [buffer for _, own in described for buffer in own]


def kept(payload: object) -> Prepared | Encoded:
    """Returns a payload as it is now, encoded, for a message that is sealed later."""
    return payload if isinstance(payload, Prepared | Encoded) else Prepared.of(payload).freeze()


def _shared(buffers: list[Buffer]) -> list[Buffer]:
    """Returns the buffers read-only: nobody may write into memory that several messages share."""
    return [each if isinstance(each, bytes) else memoryview(each).toreadonly() for each in buffers]


@final
class MessageCodec:
    """Seals and opens the messages that carry user values, through a chain of interceptors.

    Args:
        functions: Returns the function of a name that is sent as a value, or refuses it: called
            with the name, the sender as `caller`, and the envelope's `kind`.
        worker: This worker's name, for errors.
        limits: The limits of one message that arrives.
        devices: The devices at which arrays of GPUs arrive.
        memory: Returns the memory that a worker shares with this one, for the arrays that it gets.

    Attributes:
        devices: The devices at which arrays of GPUs arrive.
        memory: Returns the memory that a worker shares with this one.
    """

    def __init__(
        self,
        functions: Callable[..., object],
        worker: str = "",
        limits: DecodeLimits = DEFAULT_LIMITS,
        devices: Devices | None = None,
        memory: Callable[[WorkerInfo], Memory] | None = None,
    ) -> None:
        self.devices = Devices({}, worker) if devices is None else devices
        self.memory = _no_memory if memory is None else memory
        self._functions = functions
        self._worker = worker
        self._limits = limits
        self._chain: tuple[Interceptor, ...] = ()
        self._hears_all = False  # an interceptor hears also messages with arrays alone

    def add(self, interceptor: Interceptor) -> None:
        """Appends an interceptor to the chain.

        Raises:
            ValueError: Another one has its name.
        """
        if any(interceptor.name == other.name for other in self._chain):
            raise ValueError(f"an interceptor named {interceptor.name!r} is there already")
        self._chain = (*self._chain, interceptor)
        self._hears_all |= interceptor.hears_all

    def seal(
        self,
        peer: WorkerInfo,
        kind: str,
        record: CallRecord,
        value: object,
        *,
        reply: bool,
        final: bool = True,
        settled: bool = False,
    ) -> Sealed:
        """Encodes a value as it is now; nothing refers to its memory afterwards.

        Args:
            peer: The receiver.
            kind: The envelope's kind.
            record: This end's record of the call.
            value: The value; may be `Prepared`, for several messages, or `Encoded`.
            reply: True if it answers a request.
            final: True if it is the last answer.
            settled: True if the caller settles its buffers, once it has let go of the value.

        Raises:
            EncodeError: The value cannot travel; nothing was recorded. For a payload that is a
                dict, the path begins with its key: `args[0]`.
        """
        prepared = None
        try:
            if type(value) is Prepared:
                prepared, encoded = value, value.encoded
                lifted = list(encoded.externals)
            elif type(value) is Encoded:
                encoded, lifted = value, list(value.externals)
            elif value is None:
                encoded, lifted = _NONE, []
            else:
                encoded = encode(value, name="value" if reply else None)
                lifted = encoded.externals
        except EncodeError as error:
            if not reply:
                raise
            raise _refused_value(record, value, error) from error.__cause__
        chain, reached = self._chain, 0
        message = None
        arrays = not lifted or _ARRAYS.issuperset(map(type, lifted))
        speaks = not arrays
        # Without a state no interceptor has seen the request, unless it hears all.
        if arrays and (not reply or record.state or self._hears_all):
            for interceptor in chain:  # `any` of a generator takes three times as long
                if interceptor.speaks(record, reply=reply):
                    speaks = True
        if speaks:
            message = Message(peer, reply, record, lifted, {}, None, final)
        to_settle: Memory | None = None
        externals: bytes = b""
        buffers: list[Buffer] = []
        headers: dict[str, bytes] = {}
        try:
            if message is not None:
                for interceptor in chain:
                    interceptor.outgoing(message)
                    reached += 1
                lifted = message.externals
            if lifted and prepared is not None:
                externals, buffers = prepared.describe(lifted, self.devices.place(peer))
            elif lifted:
                memory: Memory = NO_MEMORY
                if message is not None or max(map(_bytes_of, lifted)) > LENT_BYTES:
                    memory = self.memory(peer)
                    if settled:
                        memory = to_settle = memory.answering()
                externals, own = describe(lifted, self.devices.place(peer), memory)
                buffers = own if _BYTES.issuperset(map(type, own)) else _shared(own)
            if message is not None:
                for name, said in message.headers.items():
                    headers[name] = write_header(said)
                if not headers:
                    message.externals = []  # taking it back has nothing to look for
        except BaseException:
            if message is not None:
                # The interceptors that have recorded something for it hear that it never leaves.
                _undelivered(chain[:reached], message)
            raise
        # With keyword arguments it would take twice as long.
        envelope = Envelope(
            kind, 0, reply, math.inf, 0, encoded.document, externals, headers, buffers
        )
        if (prepared is not None and lifted) or len(encoded.document) > LENT_BYTES:
            envelope = (to_settle or self.memory(peer)).stage(envelope)
        take_back = _nothing if message is None else partial(_undelivered, chain, message)
        return Sealed(envelope, take_back, to_settle)

    @staticmethod
    def seal_bare(kind: str, body: object) -> Sealed:
        """Encodes a reply of plain values past all interceptors, which may be what failed."""
        return Sealed(write_body(kind, body, reply=True))

    def open(
        self, peer: WorkerInfo, record: CallRecord, envelope: Envelope, *, known: bool = False
    ) -> object:
        """Decodes a message that arrived, in the thread and Context that want its value.

        Args:
            peer: The sender.
            record: This end's record of the call.
            envelope: The envelope that brought it.
            known: True if the document's content is known: then None is returned.

        Raises:
            DecodeError: The bytes are no message, or names something that may not be built here.
            MemoryError: This worker had no memory for the bytes.
        """
        headers = _read_headers(envelope, self._limits) if envelope.headers else {}
        externals: list[object] = []
        try:
            if envelope.failure is not None:
                raise envelope.failure
            if envelope.externals:
                land, buffers = self.devices.land(peer), envelope.buffers
                externals = rebuild(envelope.externals, buffers, limits=self._limits, land=land)
            arrays = not externals or _ARRAYS.issuperset(map(type, externals))
            if headers or self._hears_all or not arrays:
                message = Message(peer, envelope.reply, record, externals, headers)
                for interceptor in self._chain:
                    interceptor.incoming(message)
                externals = message.externals
            if known:
                return None
            functions = partial(self._functions, caller=peer, kind=envelope.kind)
            return decode(envelope.document, externals, functions=functions, limits=self._limits)
        except BaseException as error:
            if headers or envelope.externals or self._hears_all or envelope.failure is not None:
                message = Message(peer, envelope.reply, record, [], headers)
                # What came beside the document (forks of RRefs, sends of Tensors) was counted at
                # its sender, and has to be given back though nobody reads it.
                _undelivered(self._chain, message)
            if type(error) is DecodeError or error is envelope.failure:
                function = record.function
                raise unreadable(error, self._worker, peer, function, envelope) from error.__cause__
            raise

    def says_nothing(self, envelope: Envelope) -> bool:
        """Returns True if a message is None, and no interceptor has anything to do with it."""
        if envelope.document != _NOTHING or self._hears_all:
            return False
        return not (envelope.headers or envelope.externals)

    def drop(
        self,
        peer: WorkerInfo,
        record: CallRecord,
        envelope: Envelope,
        cause: BaseException | None = None,
    ) -> None:
        """Tells the interceptors of a message that arrived and will never be opened, and why."""
        if not self._chain:
            return
        try:
            headers = _read_headers(envelope, self._limits)
        except DecodeError:
            return  # garbage holds nothing to give back
        _undelivered(self._chain, Message(peer, envelope.reply, record, [], headers, cause))


def _no_memory(peer: WorkerInfo) -> Memory:
    del peer
    return NO_MEMORY


def _undelivered(chain: tuple[Interceptor, ...], message: Message) -> None:
    """Tells interceptors that a message will not be read."""
    for interceptor in chain:
        with Contained(_logger, "interceptor %s failed in undelivered()", interceptor.name):
            try:
                interceptor.undelivered(message)
            except DecodeError as error:
                name = interceptor.name
                _logger.debug("interceptor %s cannot take back garbage: %s", name, error)


def _refused_value(record: CallRecord, value: object, error: EncodeError) -> EncodeError:
    if isinstance(value, Coroutine):
        value.close()  # nobody else has it, and the advice to await it would be in vain
    message = f"the value of {record.function} is refused: {error}"
    return EncodeError(message, path=error.path)


def write_header(header: object) -> bytes:
    """Encodes an interceptor's header, beside the document: plain values only, no big bytes.

    Raises:
        EncodeError: The header holds other values.
    """
    encoded = encode(header)
    if encoded.externals:
        raise EncodeError("what is said beside the value holds arrays, or bytes as big as one")
    return encoded.document


def _read_headers(envelope: Envelope, limits: DecodeLimits) -> dict[str, object]:
    return {name: decode(header, (), limits=limits) for name, header in envelope.headers.items()}
