from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Hello(_message.Message):
    __slots__ = ("oldest_version", "newest_version", "capabilities", "job", "name", "rank", "incarnation", "nonce", "purpose", "expected_name", "expected_incarnation", "stream")
    OLDEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_NAME_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    oldest_version: int
    newest_version: int
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    job: str
    name: str
    rank: int
    incarnation: int
    nonce: bytes
    purpose: str
    expected_name: str
    expected_incarnation: int
    stream: bytes
    def __init__(self, oldest_version: _Optional[int] = ..., newest_version: _Optional[int] = ..., capabilities: _Optional[_Iterable[str]] = ..., job: _Optional[str] = ..., name: _Optional[str] = ..., rank: _Optional[int] = ..., incarnation: _Optional[int] = ..., nonce: _Optional[bytes] = ..., purpose: _Optional[str] = ..., expected_name: _Optional[str] = ..., expected_incarnation: _Optional[int] = ..., stream: _Optional[bytes] = ...) -> None: ...

class Proof(_message.Message):
    __slots__ = ("mac", "received", "resumes")
    MAC_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    RESUMES_FIELD_NUMBER: _ClassVar[int]
    mac: bytes
    received: int
    resumes: bool
    def __init__(self, mac: _Optional[bytes] = ..., received: _Optional[int] = ..., resumes: bool = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("mac", "received", "resumes")
    MAC_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    RESUMES_FIELD_NUMBER: _ClassVar[int]
    mac: bytes
    received: int
    resumes: bool
    def __init__(self, mac: _Optional[bytes] = ..., received: _Optional[int] = ..., resumes: bool = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "words")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNSPECIFIED: _ClassVar[Refusal.Reason]
        VERSION: _ClassVar[Refusal.Reason]
        JOB: _ClassVar[Refusal.Reason]
        NAME: _ClassVar[Refusal.Reason]
        INCARNATION: _ClassVar[Refusal.Reason]
        AUTHENTICATION: _ClassVar[Refusal.Reason]
        FENCED: _ClassVar[Refusal.Reason]
        UNKNOWN_SESSION: _ClassVar[Refusal.Reason]
        NOT_ADMITTED: _ClassVar[Refusal.Reason]
        DUPLICATE: _ClassVar[Refusal.Reason]
        MALFORMED: _ClassVar[Refusal.Reason]
        UNKNOWN_STREAM: _ClassVar[Refusal.Reason]
        UNANNOUNCED: _ClassVar[Refusal.Reason]
    UNSPECIFIED: Refusal.Reason
    VERSION: Refusal.Reason
    JOB: Refusal.Reason
    NAME: Refusal.Reason
    INCARNATION: Refusal.Reason
    AUTHENTICATION: Refusal.Reason
    FENCED: Refusal.Reason
    UNKNOWN_SESSION: Refusal.Reason
    NOT_ADMITTED: Refusal.Reason
    DUPLICATE: Refusal.Reason
    MALFORMED: Refusal.Reason
    UNKNOWN_STREAM: Refusal.Reason
    UNANNOUNCED: Refusal.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    reason: Refusal.Reason
    words: str
    def __init__(self, reason: _Optional[_Union[Refusal.Reason, str]] = ..., words: _Optional[str] = ...) -> None: ...
