"""Values and frames to bytes and back; no sockets, no threads, no loop."""

from __future__ import annotations

from telegrad.wire.assembly import PIECE_BYTES, Assembly, cut
from telegrad.wire.callable_policy import CallablePolicy, expose
from telegrad.wire.decoder import decode, decode_exception
from telegrad.wire.encoder import Encoded, encode, encode_exception
from telegrad.wire.envelope import Buffer, Envelope
from telegrad.wire.exceptions import add_note
from telegrad.wire.external import describe, rebuild
from telegrad.wire.frame import (
    INLINE_BYTES,
    MAX_ENVELOPE_BYTES,
    Frame,
    Goodbye,
    Heartbeat,
    Piece,
    inline_parts,
    inline_size,
    pack_frame,
    unpack_frame,
)
from telegrad.wire.function_ref import FunctionRef, name_of
from telegrad.wire.registry import (
    ExternalType,
    register_external,
    register_refusal,
    register_type,
)

__all__ = [
    "INLINE_BYTES",
    "MAX_ENVELOPE_BYTES",
    "PIECE_BYTES",
    "Assembly",
    "Buffer",
    "CallablePolicy",
    "Encoded",
    "Envelope",
    "ExternalType",
    "Frame",
    "FunctionRef",
    "Goodbye",
    "Heartbeat",
    "Piece",
    "add_note",
    "cut",
    "decode",
    "decode_exception",
    "describe",
    "encode",
    "encode_exception",
    "expose",
    "inline_parts",
    "inline_size",
    "name_of",
    "pack_frame",
    "rebuild",
    "register_external",
    "register_refusal",
    "register_type",
    "unpack_frame",
]
