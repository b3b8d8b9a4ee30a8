"""Values and frames to bytes and back; no sockets, no threads, no loop."""

from __future__ import annotations

from telegrad.wire.assembly import Assembly
from telegrad.wire.callable_policy import CallablePolicy, expose
from telegrad.wire.copies import copy_of
from telegrad.wire.decoder import decode, decode_exception
from telegrad.wire.encoder import Encoded, encode, encode_exception
from telegrad.wire.envelope import Buffer, Envelope
from telegrad.wire.exceptions import add_note
from telegrad.wire.external import describe, join_described, rebuild
from telegrad.wire.frame import (
    INLINE_BYTES,
    MAX_ENVELOPE_BYTES,
    Frame,
    Goodbye,
    Heartbeat,
    inline_parts,
    inline_size,
    pack_frame,
    unpack_frame,
)
from telegrad.wire.function_ref import FunctionRef, name_of
from telegrad.wire.lookup import import_missing_with
from telegrad.wire.piece import PIECE_BYTES, Piece, chunk_header, cut, read_chunk
from telegrad.wire.project import Project
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
    "Project",
    "add_note",
    "chunk_header",
    "copy_of",
    "cut",
    "decode",
    "decode_exception",
    "describe",
    "encode",
    "encode_exception",
    "expose",
    "import_missing_with",
    "inline_parts",
    "inline_size",
    "join_described",
    "name_of",
    "pack_frame",
    "read_chunk",
    "rebuild",
    "register_external",
    "register_refusal",
    "register_type",
    "unpack_frame",
]
