"""Nonsense that one worker sends another inside the session that both proved themselves for."""

from __future__ import annotations

from typing import Any, final
from unittest import mock

from telegrad import rpc
from telegrad.rpc.base.interceptor import Interceptor, Message
from telegrad.rpc.call.codec import MessageCodec
from telegrad.rpc.pool.inbox import Inbox
from telegrad.rpc.seams import current_agent
from telegrad.testing import Cluster
from telegrad.wire import Envelope, write_body
from tests.faults.outcome import Failure, failure_of
from tests.faults.remote_code import who

BODIES: tuple[object, ...] = (
    None,
    True,
    3,
    -1,
    2**70,
    "text",
    b"\xff\xff",
    [],
    [[], {}, None],
    {},
    {"func": 3, "args": None, "kwargs": []},
    {"func": "posix:system", "script": "", "args": ["exit 3"], "kwargs": {}},
    {"context": "x", "pass": None, "claims": 3},
    {"context": 1, "pass": -1, "gradients": [[1, 2]], "ids": ["x"], "peers": [None]},
    [1, 2, 3, 4, 5, 6],
)
DOCUMENTS = (b"", b"\xc1", b"\xff" * 64, b"\xdd\xff\xff\xff\xff", b"\x81\xa1x", b"\x91" * 5000)
NUMBERS = (0, 1, 1 << 40)


def known_kinds() -> list[str]:
    """Returns the kinds for which an agent of this process registers handlers."""
    kinds: list[str] = []
    register = Inbox.register

    def note(inbox: Inbox, kind: str, handler: Any, **how: Any) -> None:
        kinds.append(kind)
        register(inbox, kind, handler, **how)

    with mock.patch.object(Inbox, "register", note), Cluster(1):
        return kinds


def known_headers() -> list[str]:
    """Returns the names of the interceptors that an agent of this process adds."""
    names: list[str] = []
    add = MessageCodec.add

    def note(codec: MessageCodec, interceptor: Interceptor) -> None:
        names.append(interceptor.name)
        add(codec, interceptor)

    with mock.patch.object(MessageCodec, "add", note), Cluster(1):
        return names


def send_garbage(to: str, known: list[str]) -> int:
    """Sends every kind that is known, and some that are not, with every kind of nonsense."""
    agent = current_agent()
    peer = rpc.get_worker_info(to)
    kinds = [*known, "rpc.reply", "rpc.error", "no.such.kind", "\u20ac" * 99]
    sent = 0
    for kind in kinds:
        for call in NUMBERS:
            for reply in (False, True):
                for document in DOCUMENTS:
                    garbage = Envelope(kind, call=call, reply=reply, document=document)
                    agent.messages.post_envelope(peer, garbage)
                for body in BODIES:
                    envelope = write_body(kind, body, reply=reply)
                    envelope.call = call
                    agent.messages.post_envelope(peer, envelope)
                sent += len(DOCUMENTS) + len(BODIES)
    return sent


@final
class Spoiler(Interceptor):
    """Replaces what another interceptor says of a request."""

    def __init__(self) -> None:
        self.replaces: tuple[str, object] | None = None

    @property
    def name(self) -> str:
        return "spoiler"

    def outgoing(self, message: Message) -> None:
        if self.replaces is not None and not message.reply:
            name, header = self.replaces
            message.headers[name] = header

    def incoming(self, message: Message) -> None:
        pass

    def undelivered(self, message: Message) -> None:
        pass


def send_bad_headers(to: str, names: list[str]) -> list[Failure]:
    """Calls in good form, but with nonsense in what the interceptors say beside the document."""
    agent = current_agent()
    spoiler = Spoiler()
    agent.codec.add(spoiler)
    ends = []
    for name in names:
        for header in BODIES:
            spoiler.replaces = name, header
            ends.append(failure_of(lambda: rpc.rpc_sync(to, who, timeout=10.0)))
    spoiler.replaces = None
    return ends
