"""What the passes and contexts of two workers say to each other, as plain wire values.

autograd.begin      request, reply when settled     context, pass, retain, create, keep, claims
autograd.gradient   one-way                         context, pass, gradients, nones
                    of a pass that is recorded      function, slots, too
autograd.abort      request, reply when passed on   context, pass, cause
autograd.release    one-way                         context, lowest
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from telegrad.autograd import Gradients, Tensor
from telegrad.dist_autograd.released import ContextId
from telegrad.errors import DecodeError, EncodeError, RemoteError
from telegrad.types import WorkerInfo
from telegrad.wire import decode_exception, encode_exception

__all__ = [
    "ABORT",
    "BEGIN",
    "GRADIENT",
    "RELEASE",
    "AbortMessage",
    "BeginMessage",
    "GradientMessage",
    "PassId",
    "PassMode",
    "ReleaseMessage",
    "describe_cause",
    "note_origin",
    "read_cause",
]

BEGIN = "autograd.begin"
GRADIENT = "autograd.gradient"
ABORT = "autograd.abort"
RELEASE = "autograd.release"


@final
@dataclass(frozen=True, slots=True)
class PassId:
    """Names one call of backward.

    Attributes:
        starter: The worker on which it was called.
        number: What that worker counts up.
    """

    starter: WorkerInfo
    number: int

    def to_wire(self) -> list[object]:
        """Returns it as plain values."""
        return [self.starter.name, self.starter.rank, self.starter.incarnation, self.number]

    @staticmethod
    def from_wire(value: object) -> PassId:
        """Returns it from plain values; raises DecodeError."""
        match value:
            case [str(name), int(rank), int(incarnation), int(number)]:
                return PassId(WorkerInfo(name, rank, incarnation), number)
        raise DecodeError(f"{value!r} is not the id of a backward pass")


@final
@dataclass(frozen=True, slots=True)
class PassMode:
    """How a pass runs, the same at all of its workers.

    Attributes:
        retain: Whether graphs are kept for another pass.
        create: Whether the pass is recorded, so that its gradients can be differentiated again.
        keep: Whether leaves' gradients are kept in the context. If not, nothing is run but what
            leads to other workers, and to what the starter is asked for.
    """

    retain: bool = False
    create: bool = False
    keep: bool = True


@final
@dataclass(frozen=True, slots=True)
class BeginMessage:
    """The pass begins: the sender claims an answer for each of these sends to the receiver."""

    context_id: ContextId
    pass_id: PassId
    mode: PassMode
    claims: tuple[int, ...]

    def to_wire(self) -> dict[str, object]:
        """Returns it as plain values."""
        head, mode = _head(self.context_id, self.pass_id), self.mode
        how = {"retain": mode.retain, "create": mode.create, "keep": mode.keep}
        return {**head, **how, "claims": list(self.claims)}

    @staticmethod
    def from_wire(body: object) -> BeginMessage:
        """Returns it from plain values; raises DecodeError."""
        context_id, pass_id, fields = _read_head(body)
        mode = PassMode(
            retain=bool(fields.get("retain")),
            create=bool(fields.get("create")),
            keep=bool(fields.get("keep", True)),
        )
        return BeginMessage(context_id, pass_id, mode, _numbers(fields.get("claims")))


@final
@dataclass(frozen=True, slots=True)
class GradientMessage:
    """Answers: gradients slot by slot, and the message ids that none is the answer to.

    Attributes:
        context_id: The context.
        pass_id: The pass.
        gradients: By the message id that each answers; under `create` they are Tensors.
        nones: Message ids.
        function: The autograd message id of this message itself; 0 if no gradient needs one.
        slots: Which of the gradients do, counted through all slots of `gradients`.
    """

    context_id: ContextId
    pass_id: PassId
    gradients: tuple[tuple[int, Gradients], ...]
    nones: tuple[int, ...]
    function: int = 0
    slots: tuple[int, ...] = ()

    def to_wire(self) -> dict[str, object]:
        """Returns it as plain values and arrays."""
        gradients = [[number, list(slots)] for number, slots in self.gradients]
        body = _head(self.context_id, self.pass_id)
        body.update(gradients=gradients, nones=list(self.nones))
        if self.function:
            body.update(function=self.function, slots=list(self.slots))
        return body

    @staticmethod
    def from_wire(body: object) -> GradientMessage:
        """Returns it from plain values and arrays; raises DecodeError."""
        context_id, pass_id, fields = _read_head(body)
        gradients: list[tuple[int, Gradients]] = []
        given = fields.get("gradients")
        for item in given if isinstance(given, list) else ():
            match item:
                case [int(number), list(slots)]:
                    gradients.append((number, tuple(slots)))
                case _:
                    raise DecodeError("a gradient is not a message id and a list of slots")
        nones, function = _numbers(fields.get("nones")), fields.get("function", 0)
        places = _numbers(fields.get("slots", []))
        flat = [gradient for _, answer in gradients for gradient in answer]
        if not isinstance(function, int) or not all(
            0 <= place < len(flat) and isinstance(flat[place], Tensor) for place in places
        ):
            raise DecodeError("what is said to need a gradient in a gradient is no Tensor")
        return GradientMessage(context_id, pass_id, tuple(gradients), nones, function, places)


@final
@dataclass(frozen=True, slots=True)
class AbortMessage:
    """The pass is over, with this cause."""

    context_id: ContextId
    pass_id: PassId
    cause: BaseException

    def to_wire(self) -> dict[str, object]:
        """Returns it as plain values."""
        return {**_head(self.context_id, self.pass_id), "cause": describe_cause(self.cause)}

    @staticmethod
    def from_wire(body: object) -> AbortMessage:
        """Returns it from plain values; raises DecodeError."""
        context_id, pass_id, fields = _read_head(body)
        return AbortMessage(context_id, pass_id, read_cause(fields.get("cause")))


@final
@dataclass(frozen=True, slots=True)
class ReleaseMessage:
    """A context is over, and all of its creator's below a number."""

    context_id: ContextId
    lowest: int

    def to_wire(self) -> dict[str, object]:
        """Returns it as plain values."""
        return {"context": self.context_id, "lowest": self.lowest}

    @staticmethod
    def from_wire(body: object) -> ReleaseMessage:
        """Returns it from plain values; raises DecodeError."""
        match body:
            case {"context": int(context_id), "lowest": int(lowest)}:
                return ReleaseMessage(context_id, lowest)
        raise DecodeError("a release names no context")


def note_origin(cause: BaseException, worker: str, context_id: ContextId) -> None:
    """Notes on an exception where in a pass it was raised, for whoever is told of it."""
    text = "".join(traceback.format_exception(cause)).rstrip()
    cause.add_note(f"raised on worker {worker!r}, in backward of context {context_id}:\n{text}")


def describe_cause(cause: BaseException) -> dict[str, object]:
    """Returns why a pass is aborted as plain values."""
    described: object = None
    if isinstance(cause, Exception):
        try:
            described = encode_exception(cause)
        except EncodeError:
            described = None  # it has attributes that cannot travel: its words do
    name = f"{type(cause).__module__}:{type(cause).__qualname__}"
    notes = [str(note) for note in getattr(cause, "__notes__", ())]
    return {"error": described, "type": name, "message": str(cause), "notes": notes}


def read_cause(body: object) -> BaseException:
    """Returns the exception that `describe_cause` described; a RemoteError if it is unknown here."""
    if not isinstance(body, dict):
        return RemoteError("the backward pass was aborted, and nothing readable says why")
    if body.get("error") is not None:
        try:
            return decode_exception(body["error"])
        except DecodeError:
            pass  # its class is not imported here
    type_name = str(body.get("type", ""))
    error = RemoteError(
        f"{type_name.rpartition(':')[2]}: {body.get('message')}", type_name=type_name
    )
    for note in body.get("notes") or ():
        error.add_note(str(note))
    return error


def _head(context_id: ContextId, pass_id: PassId) -> dict[str, object]:
    return {"context": context_id, "pass": pass_id.to_wire()}


def _read_head(body: object) -> tuple[ContextId, PassId, Mapping[str, Any]]:
    if isinstance(body, dict) and isinstance(body.get("context"), int):
        return body["context"], PassId.from_wire(body.get("pass")), body
    raise DecodeError("a message of a backward pass names no context")


def _numbers(value: object) -> tuple[int, ...]:
    if isinstance(value, list) and all(isinstance(item, int) for item in value):
        return tuple(value)
    raise DecodeError("a list of message ids was expected")
