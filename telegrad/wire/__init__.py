"""Values and frames to bytes and back; no sockets, no threads, no loop."""

from __future__ import annotations

from telegrad.wire import names
from telegrad.wire.body import read_body, write_body
from telegrad.wire.decoder import decode, decode_exception
from telegrad.wire.document import DEFAULT_LIMITS, SMALL_LIMITS, Allowance, DecodeLimits, read_head
from telegrad.wire.encoder import Encoded, encode, encode_exception
from telegrad.wire.envelope import Buffer, Envelope
from telegrad.wire.exceptions import add_note
from telegrad.wire.external import (
    describe,
    describe_held,
    describe_lines,
    pack_lines,
    rebuild,
    rebuild_held,
)
from telegrad.wire.frame import (
    ENVELOPE_BYTES,
    INLINE_BYTES,
    Frame,
    Goodbye,
    Heartbeat,
    inline_parts,
    measure,
    pack_frame,
    unpack_frame,
)
from telegrad.wire.lending import FIRST_BUFFER, LENT_BYTES, Lending, Lent
from telegrad.wire.memory import (
    NO_MEMORY,
    SHADOW_BYTES,
    Memory,
    Mode,
    copy_of,
    mode_of,
    set_mode,
    write_place,
)
from telegrad.wire.names import FunctionRef, import_missing_with, name_of
from telegrad.wire.pieces import (
    BLOCK_BYTES,
    CHUNK_HEADER_BYTES,
    PIECE_BYTES,
    Assembly,
    Piece,
    Span,
    chunk_header,
    cut,
    read_chunk,
    read_chunk_header,
)
from telegrad.wire.project import Project, is_foreign_name
from telegrad.wire.registry import (
    HOST,
    MOST_GPUS,
    DeviceMap,
    ExternalType,
    Land,
    Place,
    first_gpu,
    land,
    place_by,
    register_external,
    register_refusal,
    register_type,
)
from telegrad.wire.words import escaped

__all__ = [
    "BLOCK_BYTES",
    "CHUNK_HEADER_BYTES",
    "DEFAULT_LIMITS",
    "ENVELOPE_BYTES",
    "FIRST_BUFFER",
    "HOST",
    "INLINE_BYTES",
    "LENT_BYTES",
    "MOST_GPUS",
    "NO_MEMORY",
    "PIECE_BYTES",
    "SHADOW_BYTES",
    "SMALL_LIMITS",
    "Allowance",
    "Assembly",
    "Buffer",
    "DecodeLimits",
    "DeviceMap",
    "Encoded",
    "Envelope",
    "ExternalType",
    "Frame",
    "FunctionRef",
    "Goodbye",
    "Heartbeat",
    "Land",
    "Lending",
    "Lent",
    "Memory",
    "Mode",
    "Piece",
    "Place",
    "Project",
    "Span",
    "add_note",
    "chunk_header",
    "copy_of",
    "cut",
    "decode",
    "decode_exception",
    "describe",
    "describe_held",
    "describe_lines",
    "encode",
    "encode_exception",
    "escaped",
    "first_gpu",
    "import_missing_with",
    "inline_parts",
    "is_foreign_name",
    "land",
    "measure",
    "mode_of",
    "name_of",
    "names",
    "pack_frame",
    "pack_lines",
    "place_by",
    "read_body",
    "read_chunk",
    "read_chunk_header",
    "read_head",
    "rebuild",
    "rebuild_held",
    "register_external",
    "register_refusal",
    "register_type",
    "set_mode",
    "unpack_frame",
    "write_body",
    "write_place",
]
