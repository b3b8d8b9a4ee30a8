from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("heartbeat", "goodbye", "lending", "laneless", "head", "raw")
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    LENDING_FIELD_NUMBER: _ClassVar[int]
    LANELESS_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    heartbeat: Heartbeat
    goodbye: Goodbye
    lending: Lending
    laneless: Laneless
    head: bytes
    raw: bytes
    def __init__(self, heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., lending: _Optional[_Union[Lending, _Mapping]] = ..., laneless: _Optional[_Union[Laneless, _Mapping]] = ..., head: _Optional[bytes] = ..., raw: _Optional[bytes] = ...) -> None: ...

class Laneless(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    def __init__(self, chunk: _Optional[bytes] = ...) -> None: ...

class Lending(_message.Message):
    __slots__ = ("slabs", "slab_sizes", "envelopes", "parts", "loans", "lenders", "offsets", "returned", "dropped")
    SLABS_FIELD_NUMBER: _ClassVar[int]
    SLAB_SIZES_FIELD_NUMBER: _ClassVar[int]
    ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    LOANS_FIELD_NUMBER: _ClassVar[int]
    LENDERS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    slabs: _containers.RepeatedScalarFieldContainer[int]
    slab_sizes: _containers.RepeatedScalarFieldContainer[int]
    envelopes: _containers.RepeatedScalarFieldContainer[int]
    parts: _containers.RepeatedScalarFieldContainer[int]
    loans: _containers.RepeatedScalarFieldContainer[int]
    lenders: _containers.RepeatedScalarFieldContainer[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    returned: _containers.RepeatedScalarFieldContainer[int]
    dropped: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, slabs: _Optional[_Iterable[int]] = ..., slab_sizes: _Optional[_Iterable[int]] = ..., envelopes: _Optional[_Iterable[int]] = ..., parts: _Optional[_Iterable[int]] = ..., loans: _Optional[_Iterable[int]] = ..., lenders: _Optional[_Iterable[int]] = ..., offsets: _Optional[_Iterable[int]] = ..., returned: _Optional[_Iterable[int]] = ..., dropped: _Optional[_Iterable[int]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sent", "echo", "lag", "busy", "chunks")
    SENT_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    sent: float
    echo: float
    lag: float
    busy: int
    chunks: int
    def __init__(self, sent: _Optional[float] = ..., echo: _Optional[float] = ..., lag: _Optional[float] = ..., busy: _Optional[int] = ..., chunks: _Optional[int] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...
