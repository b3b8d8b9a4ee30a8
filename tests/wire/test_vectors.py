"""The published vectors are what this version writes, and can be read without telegrad."""

from __future__ import annotations

import json
import operator
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts import make_vectors
from telegrad.errors import FunctionNotFoundError
from telegrad.transport.security.handshake import Reason
from telegrad.wire import decode, rebuild, unpack_frame
from telegrad.wire.document import Tag
from tests.wire import independent, independent_frames, vector_cases, vector_streams
from tests.wire.chunks import read_chunk

VECTORS = Path(__file__).parent.parent / "vectors"
FUNCTIONS = {
    f"{vector_cases.__name__}:double": vector_cases.double,
    f"{vector_cases.__name__}:Point": vector_cases.Point,
    "operator:add": operator.add,
    "builtins:list": list,
}


def load(name: str) -> Any:
    return json.loads((VECTORS / name).read_text())


VALUES = [vector for table in vector_cases.TABLES for vector in load(f"{table}.json")]
HANDSHAKES = load("handshake.json")["handshakes"]


def text(form: Any) -> str:
    """Returns a published form as text, in which 1 is not 1.0, nor 0.0 the same as -0.0."""

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.hex()
        if isinstance(value, dict):
            inner = {key: plain(each) for key, each in value.items()}
            return {k: sorted(v, key=text) if k == "$set" else v for k, v in inner.items()}
        return [plain(each) for each in value] if isinstance(value, list | tuple) else value

    return json.dumps(plain(form), sort_keys=True)


def parts_of(vector: Any) -> tuple[bytes, bytes, list[bytes]]:
    buffers = [bytes.fromhex(buffer) for buffer in vector["buffers"]]
    return bytes.fromhex(vector["document"]), bytes.fromhex(vector["externals"]), buffers


def find(name: str) -> object:
    try:
        return FUNCTIONS[name]
    except KeyError:
        raise FunctionNotFoundError(name) from None


# -- what this version writes ---------------------------------------------------------------------


def test_the_encoder_still_writes_the_published_bytes() -> None:
    assert make_vectors.differences() == []


@pytest.mark.parametrize(
    "vector",
    [v for v in VALUES if v["name"] not in vector_cases.LOSSY | vector_cases.BESIDE],
    ids=lambda vector: vector["name"],
)
def test_the_decoder_reads_the_published_values(
    vector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "cupy", raising=False)  # what is for a GPU is NumPy's here
    document, metadata, buffers = parts_of(vector)
    externals = rebuild(metadata, [bytearray(buffer) for buffer in buffers])
    found = vector_cases.shown(decode(document, externals, functions=find))
    assert text(found) == text([vector["value"], vector["objects"]])


def test_bytes_beside_the_document_arrive_as_bytes() -> None:
    for vector in VALUES:
        if vector["name"] in vector_cases.BESIDE:
            document, metadata, buffers = parts_of(vector)
            found = decode(document, rebuild(metadata, buffers))
            expected = vector_cases.OBJECTS[vector["name"]].value
            assert (type(found), found) == (type(expected), expected)


def test_every_tag_has_a_vector() -> None:
    documents = [independent.unpack(bytes.fromhex(vector["document"])) for vector in VALUES]
    assert set(Tag) == {code for tree in documents for code in codes(tree)}


def codes(tree: Any) -> set[int]:
    if isinstance(tree, independent.Ext):
        return {tree.code}
    inside = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else []
    return set[int]().union(*map(codes, inside))


# -- what others read -----------------------------------------------------------------------------


@pytest.mark.parametrize("vector", VALUES, ids=lambda vector: vector["name"])
def test_values_are_read_without_telegrad(vector: Any) -> None:
    document, metadata, buffers = parts_of(vector)
    assert text(independent.document(document)) == text(vector["value"])
    assert text(independent.externals(metadata, buffers)) == text(vector["objects"])


@pytest.mark.parametrize("vector", load("frames.json")["frames"], ids=lambda v: v["name"])
def test_frames_are_read_without_telegrad(vector: Any) -> None:
    data = bytes.fromhex(vector["message"])
    found = independent_frames.frame(data)
    assert text(found) == text(vector["fields"])
    envelopes = vector["fields"].get("envelopes", [])
    assert [each.kind for each in unpack_frame(data).envelopes] == [e["kind"] for e in envelopes]


@pytest.mark.parametrize("vector", load("frames.json")["chunks"], ids=lambda v: v["number"])
def test_chunks_are_read_without_telegrad(vector: Any) -> None:
    data = bytes.fromhex(vector["message"])
    assert independent_frames.chunk(data) | {"message": vector["message"]} == vector
    sequence, piece = read_chunk(data)
    assert (sequence, piece.number, piece.part, piece.offset) == struct.unpack_from(">QQIQ", data)


@pytest.mark.parametrize("vector", HANDSHAKES, ids=lambda vector: vector["name"])
def test_handshakes_are_checked_without_telegrad(vector: Any) -> None:
    dialler, answer, proof, welcome = [bytes.fromhex(m["message"]) for m in vector["messages"]]
    for told, message in zip(vector["messages"], (dialler, answer, proof, welcome), strict=True):
        assert text(handshake_fields(message)) == text(told["fields"])
    token = None if vector["token"] is None else vector["token"].encode()
    hellos = independent_frames.transcript(dialler[1:], answer[1:])
    binding = bytes.fromhex(vector["binding"])
    purpose = handshake_fields(dialler)["purpose"].encode()
    for role, message in ((b"dialler", proof), (b"listener", welcome)):
        fields = handshake_fields(message)
        expected = independent_frames.mac(token, role, purpose, fields, hellos, binding)
        assert fields.get("mac", b"") == expected
    assert independent_frames.stream_id(token, hellos).hex() == vector["stream_id"]
    for sealed in vector.get("sealed", []):
        payload, message = bytes.fromhex(sealed["payload"]), bytes.fromhex(sealed["message"])
        if token is None or binding:
            assert message == payload
            continue
        key = independent_frames.stream_key(token, sealed["from"].encode(), hellos)
        assert message == independent_frames.tag(key, sealed["counter"], payload) + payload


def handshake_fields(message: bytes) -> dict[str, Any]:
    schema = independent_frames.HANDSHAKE[message[:1]]
    return independent_frames.message(schema, message[1:])


def test_every_refusal_has_a_vector() -> None:
    refusals = load("handshake.json")["refusals"]
    found = [handshake_fields(bytes.fromhex(each["message"])) for each in refusals]
    assert [each["fields"] for each in refusals] == found
    assert {each.get("reason", 0) for each in found} == set(Reason)


def test_the_conversation_is_followed_without_telegrad() -> None:
    recorded = load("conversation.json")
    token = recorded["token"].encode()
    kinds: list[str] = []
    for stream in ("coordinator", "server"):
        steps = [step for step in recorded["steps"] if step["stream"] == stream]
        hello, answer, *_ = [bytes.fromhex(step["message"]) for step in steps]
        hellos = independent_frames.transcript(hello[1:], answer[1:])
        dialler = steps[0]["from"]
        counters = dict.fromkeys((step["from"] for step in steps), 0)
        for step in steps[4:]:
            sender, message = step["from"], bytes.fromhex(step["message"])
            role = b"dialler" if sender == dialler else b"listener"
            key = independent_frames.stream_key(token, role, hellos)
            payload = message[16:]
            assert message[:16] == independent_frames.tag(key, counters[sender], payload)
            counters[sender] += 1
            frame = independent_frames.frame(payload)
            assert text(frame) == text(step["fields"])
            for envelope in frame.get("envelopes", []):
                kinds.append(envelope["kind"])
                objects = independent.externals(
                    envelope.get("externals", b""), envelope.get("buffers", [])
                )
                assert text(independent.document(envelope["document"])) == text(step["value"])
                assert text(objects) == text(step["objects"])
    assert kinds.count("rpc.call") == 2
    assert {"member.join", "rpc.reply", "rpc.error", "member.leave"} <= set(kinds)


# -- the checks can fail --------------------------------------------------------------------------


def test_a_changed_byte_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vector_cases.PLAIN, "true", False)
    monkeypatch.setattr(vector_streams, "JOB", "another")
    found = make_vectors.differences()
    assert any(line.startswith("plain.json") for line in found)
    assert any(line.startswith("handshake.json") for line in found)
    assert any(line.startswith("conversation.json") for line in found)
