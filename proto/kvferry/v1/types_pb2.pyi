from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_KIND_UNSPECIFIED: _ClassVar[JobKind]
    JOB_KIND_STORE: _ClassVar[JobKind]
    JOB_KIND_LOAD: _ClassVar[JobKind]

class Presence(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRESENCE_UNSPECIFIED: _ClassVar[Presence]
    PRESENCE_PRESENT: _ClassVar[Presence]
    PRESENCE_ABSENT: _ClassVar[Presence]
    PRESENCE_UNKNOWN: _ClassVar[Presence]

class ChunkOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHUNK_OUTCOME_UNSPECIFIED: _ClassVar[ChunkOutcome]
    CHUNK_OUTCOME_STORED: _ClassVar[ChunkOutcome]
    CHUNK_OUTCOME_SKIPPED_PRESENT: _ClassVar[ChunkOutcome]
    CHUNK_OUTCOME_SKIPPED_IN_FLIGHT: _ClassVar[ChunkOutcome]
    CHUNK_OUTCOME_LOADED: _ClassVar[ChunkOutcome]
    CHUNK_OUTCOME_MISSING: _ClassVar[ChunkOutcome]
    CHUNK_OUTCOME_CORRUPT: _ClassVar[ChunkOutcome]
    CHUNK_OUTCOME_WRONG_SIZE: _ClassVar[ChunkOutcome]
    CHUNK_OUTCOME_SHED: _ClassVar[ChunkOutcome]
    CHUNK_OUTCOME_EXPIRED: _ClassVar[ChunkOutcome]
    CHUNK_OUTCOME_DENIED: _ClassVar[ChunkOutcome]
    CHUNK_OUTCOME_UNAVAILABLE: _ClassVar[ChunkOutcome]
    CHUNK_OUTCOME_CANCELLED: _ClassVar[ChunkOutcome]
    CHUNK_OUTCOME_INTERNAL: _ClassVar[ChunkOutcome]
JOB_KIND_UNSPECIFIED: JobKind
JOB_KIND_STORE: JobKind
JOB_KIND_LOAD: JobKind
PRESENCE_UNSPECIFIED: Presence
PRESENCE_PRESENT: Presence
PRESENCE_ABSENT: Presence
PRESENCE_UNKNOWN: Presence
CHUNK_OUTCOME_UNSPECIFIED: ChunkOutcome
CHUNK_OUTCOME_STORED: ChunkOutcome
CHUNK_OUTCOME_SKIPPED_PRESENT: ChunkOutcome
CHUNK_OUTCOME_SKIPPED_IN_FLIGHT: ChunkOutcome
CHUNK_OUTCOME_LOADED: ChunkOutcome
CHUNK_OUTCOME_MISSING: ChunkOutcome
CHUNK_OUTCOME_CORRUPT: ChunkOutcome
CHUNK_OUTCOME_WRONG_SIZE: ChunkOutcome
CHUNK_OUTCOME_SHED: ChunkOutcome
CHUNK_OUTCOME_EXPIRED: ChunkOutcome
CHUNK_OUTCOME_DENIED: ChunkOutcome
CHUNK_OUTCOME_UNAVAILABLE: ChunkOutcome
CHUNK_OUTCOME_CANCELLED: ChunkOutcome
CHUNK_OUTCOME_INTERNAL: ChunkOutcome

class SessionRef(_message.Message):
    __slots__ = ("session_id", "token")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    token: bytes
    def __init__(self, session_id: _Optional[str] = ..., token: _Optional[bytes] = ...) -> None: ...

class RequestContext(_message.Message):
    __slots__ = ("request_id", "priority", "transfer_params")
    class TransferParamsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_PARAMS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    priority: int
    transfer_params: _containers.ScalarMap[str, str]
    def __init__(self, request_id: _Optional[str] = ..., priority: _Optional[int] = ..., transfer_params: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_keys_per_request", "max_jobs_per_request", "max_bytes_per_request", "max_key_bytes", "max_open_jobs", "max_wait", "max_message_bytes")
    MAX_KEYS_PER_REQUEST_FIELD_NUMBER: _ClassVar[int]
    MAX_JOBS_PER_REQUEST_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_PER_REQUEST_FIELD_NUMBER: _ClassVar[int]
    MAX_KEY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_OPEN_JOBS_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    max_keys_per_request: int
    max_jobs_per_request: int
    max_bytes_per_request: int
    max_key_bytes: int
    max_open_jobs: int
    max_wait: _duration_pb2.Duration
    max_message_bytes: int
    def __init__(self, max_keys_per_request: _Optional[int] = ..., max_jobs_per_request: _Optional[int] = ..., max_bytes_per_request: _Optional[int] = ..., max_key_bytes: _Optional[int] = ..., max_open_jobs: _Optional[int] = ..., max_wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., max_message_bytes: _Optional[int] = ...) -> None: ...
