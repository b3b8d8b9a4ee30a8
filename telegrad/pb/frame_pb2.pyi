from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("envelopes", "receipt", "heartbeat", "goodbye", "lending", "laneless")
    ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    LENDING_FIELD_NUMBER: _ClassVar[int]
    LANELESS_FIELD_NUMBER: _ClassVar[int]
    envelopes: _containers.RepeatedCompositeFieldContainer[Envelope]
    receipt: int
    heartbeat: Heartbeat
    goodbye: Goodbye
    lending: Lending
    laneless: Laneless
    def __init__(self, envelopes: _Optional[_Iterable[_Union[Envelope, _Mapping]]] = ..., receipt: _Optional[int] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., lending: _Optional[_Union[Lending, _Mapping]] = ..., laneless: _Optional[_Union[Laneless, _Mapping]] = ...) -> None: ...

class Laneless(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    def __init__(self, chunk: _Optional[bytes] = ...) -> None: ...

class FrameOutline(_message.Message):
    __slots__ = ("envelopes",)
    ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    envelopes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, envelopes: _Optional[_Iterable[bytes]] = ...) -> None: ...

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

class Envelope(_message.Message):
    __slots__ = ("number", "kind", "call", "reply", "time_left", "depth", "document", "externals", "headers", "buffer_sizes", "buffers", "document_size", "externals_size")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    TIME_LEFT_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    EXTERNALS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    BUFFER_SIZES_FIELD_NUMBER: _ClassVar[int]
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_SIZE_FIELD_NUMBER: _ClassVar[int]
    EXTERNALS_SIZE_FIELD_NUMBER: _ClassVar[int]
    number: int
    kind: str
    call: int
    reply: bool
    time_left: float
    depth: int
    document: bytes
    externals: bytes
    headers: _containers.ScalarMap[str, bytes]
    buffer_sizes: _containers.RepeatedScalarFieldContainer[int]
    buffers: _containers.RepeatedScalarFieldContainer[bytes]
    document_size: int
    externals_size: int
    def __init__(self, number: _Optional[int] = ..., kind: _Optional[str] = ..., call: _Optional[int] = ..., reply: bool = ..., time_left: _Optional[float] = ..., depth: _Optional[int] = ..., document: _Optional[bytes] = ..., externals: _Optional[bytes] = ..., headers: _Optional[_Mapping[str, bytes]] = ..., buffer_sizes: _Optional[_Iterable[int]] = ..., buffers: _Optional[_Iterable[bytes]] = ..., document_size: _Optional[int] = ..., externals_size: _Optional[int] = ...) -> None: ...

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
