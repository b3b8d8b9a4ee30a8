"""The messages between the passes and contexts of two workers, as plain wire values.

autograd.pass       one-way     pass, and any of: begin, answers, gradients, nones, begun
                    of a recorded pass  sent, too
autograd.abort      request, reply when passed on   pass, begun
autograd.release    one-way                         context, lowest
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from telegrad.autograd import Gradient, Gradients
from telegrad.dist_autograd.ids import ContextId, read_context_id, write_context_id
from telegrad.errors import DecodeError
from telegrad.rpc.seams import describe_failure, rebuild_failure
from telegrad.types import WorkerInfo
from telegrad.wire import read_head as read_fields_before

PASS = "autograd.pass"
ABORT = "autograd.abort"
RELEASE = "autograd.release"

_INTEGERS = frozenset({int})


class PassId(NamedTuple):
    """The id of one call of backward.

    Attributes:
        name: The name of the starter, the worker on which backward was called.
        rank: The rank of the starter.
        incarnation: The incarnation of the starter.
        number: A number that the starter counts up.
    """

    name: str
    rank: int
    incarnation: int
    number: int

    @property
    def starter(self) -> WorkerInfo:
        """The worker on which backward was called."""
        return WorkerInfo(self.name, self.rank, self.incarnation)

    @staticmethod
    def of(starter: WorkerInfo, number: int) -> PassId:
        """Returns the id of a pass that a worker starts."""
        return PassId(starter.name, starter.rank, starter.incarnation, number)


@final
@dataclass(frozen=True, slots=True)
class PassMode:
    """The options of a pass, the same at all of its workers.

    Attributes:
        retain: True to keep graphs for another pass.
        create: True to record the pass, so that its gradients can be differentiated again.
        keep: True to keep the gradients of leaves in the context. If False, only nodes run that
            lead to other workers, or to the edges that the starter is asked for.
    """

    retain: bool = False
    create: bool = False
    keep: bool = True


@final
@dataclass(slots=True, eq=False)  # not frozen: it is filled until it is sent
class PassMessage:
    """All that one worker sends to another about a pass at one time.

    Attributes:
        mode: The options of the pass if the message is a begin; else None.
        claims: Message ids of the sender's sends to the receiver, for which a begin claims answers.
        gradients: Pairs of the answered message id and its gradients; under `create` Tensors.
        nones: Message ids that are answered with none.
        begun: True if the message replies to the receiver's begin.
        cause: The error in that reply if the sender has aborted, and in each abort; else None.
        sent: The result of `Context.record_send` for `flat()` in a recorded pass; else empty.
    """

    context_id: ContextId
    pass_id: PassId
    mode: PassMode | None = None
    claims: Sequence[int] = ()
    gradients: list[tuple[int, Gradients]] = field(default_factory=list)
    nones: list[int] = field(default_factory=list)
    begun: bool = False
    cause: BaseException | None = None
    sent: Sequence[int] = ()

    def flat(self) -> list[Gradient | None]:
        """Returns the slots of all gradients in a row."""
        return [gradient for _, slots in self.gradients for gradient in slots]

    def to_wire(self, worker: str) -> dict[str, object]:
        """Returns the message as plain values and arrays, without empty fields.

        Args:
            worker: The name of the sender, for the cause.
        """
        body: dict[str, object] = {"pass": [*write_context_id(self.context_id), *self.pass_id]}
        if self.mode is not None:
            body["begin"] = [self.mode.retain, self.mode.create, self.mode.keep, *self.claims]
        if self.gradients:
            answers: list[int] = []
            flat: list[object] = []
            for number, slots in self.gradients:
                answers += (number, len(slots))
                flat += slots
            body["answers"], body["gradients"] = answers, flat
        if self.nones:
            body["nones"] = self.nones
        if self.begun:
            body["begun"] = None if self.cause is None else describe_failure(self.cause, worker)
        if self.sent:
            body["sent"] = list(self.sent)
        return body

    @staticmethod
    def from_wire(body: object) -> PassMessage:
        """Returns the message from plain values and arrays; raises DecodeError."""
        context_id, pass_id, fields = read_head(body)
        message = PassMessage(context_id, pass_id)
        begin = fields.get("begin")
        if begin is not None:
            match begin:
                case [bool(retain), bool(create), bool(keep), *claims]:
                    message.mode = PassMode(retain, create, keep)
                    message.claims = _numbers(claims)
                case _:
                    raise DecodeError("a begin is not [retain, create, keep] and message ids")
        flat = fields.get("gradients", [])
        if not isinstance(flat, list):
            raise DecodeError("the gradients of a message are no list")
        if flat:
            message.gradients = _answers(_numbers(fields.get("answers")), flat)
        if "nones" in fields:
            message.nones = _numbers(fields["nones"])
        if "begun" in fields:
            message.begun, cause = True, fields["begun"]
            message.cause = None if cause is None else rebuild_failure(cause)
        if "sent" in fields:
            message.sent = _numbers(fields["sent"])
        return message


@final
@dataclass(frozen=True, slots=True)
class ReleaseMessage:
    """The message that a context is over, and all contexts of its creator below a number."""

    context_id: ContextId
    lowest: int

    def to_wire(self) -> dict[str, object]:
        """Returns it as plain values."""
        return {"context": write_context_id(self.context_id), "lowest": self.lowest}

    @staticmethod
    def from_wire(body: object) -> ReleaseMessage:
        """Returns it from plain values; raises DecodeError."""
        match body:
            case {"context": context_id, "lowest": int(lowest)}:
                return ReleaseMessage(read_context_id(context_id), lowest)
        raise DecodeError("a release names no context")


def read_head(body: object) -> tuple[ContextId, PassId, Mapping[str, Any]]:
    """Returns the context and the pass of a message, and its fields; raises DecodeError."""
    if type(body) is dict:
        match body.get("pass"):
            case [_, _, str(name), int(rank), int(incarnation), int(count)] as head:
                context_id = read_context_id(head[:2])
                return context_id, PassId(name, rank, incarnation, count), body
    raise DecodeError("a message of a backward pass names none")


def read_head_alone(document: bytes) -> tuple[ContextId, PassId]:
    """Returns the context and the pass of a message that cannot be read; raises DecodeError."""
    for following in ("begin", "answers", "nones", "begun"):  # the first field after the head
        with suppress(DecodeError):
            context_id, pass_id, _ = read_head(read_fields_before(document, following))
            return context_id, pass_id
    raise DecodeError("a message of a backward pass names none")


def _answers(counts: Sequence[int], flat: list[Any]) -> list[tuple[int, Gradients]]:
    """Returns gradients by message id; `counts` holds pairs of message id and number of slots."""
    if not len(counts) % 2:
        found, start = [], 0
        for number, slots in zip(counts[::2], counts[1::2], strict=True):
            found.append((number, tuple(flat[start : start + slots])))
            start += slots
        if start == len(flat) and min(counts[1::2]) >= 0:
            return found
    raise DecodeError("gradients are not as many as their answers say")


def _numbers(value: object) -> list[int]:
    if isinstance(value, list) and _INTEGERS.issuperset(map(type, value)):
        return value
    raise DecodeError("a list of message ids was expected")
