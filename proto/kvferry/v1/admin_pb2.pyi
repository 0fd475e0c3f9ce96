from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from kvferry.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BreakerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BREAKER_STATE_UNSPECIFIED: _ClassVar[BreakerState]
    BREAKER_STATE_CLOSED: _ClassVar[BreakerState]
    BREAKER_STATE_OPEN: _ClassVar[BreakerState]
    BREAKER_STATE_HALF_OPEN: _ClassVar[BreakerState]
BREAKER_STATE_UNSPECIFIED: BreakerState
BREAKER_STATE_CLOSED: BreakerState
BREAKER_STATE_OPEN: BreakerState
BREAKER_STATE_HALF_OPEN: BreakerState

class StoreStatus(_message.Message):
    __slots__ = ("url", "ready", "settings", "problem", "read_breaker", "write_breaker", "max_active_chunks")
    URL_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    READ_BREAKER_FIELD_NUMBER: _ClassVar[int]
    WRITE_BREAKER_FIELD_NUMBER: _ClassVar[int]
    MAX_ACTIVE_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    url: str
    ready: bool
    settings: str
    problem: str
    read_breaker: BreakerState
    write_breaker: BreakerState
    max_active_chunks: int
    def __init__(self, url: _Optional[str] = ..., ready: bool = ..., settings: _Optional[str] = ..., problem: _Optional[str] = ..., read_breaker: _Optional[_Union[BreakerState, str]] = ..., write_breaker: _Optional[_Union[BreakerState, str]] = ..., max_active_chunks: _Optional[int] = ...) -> None: ...

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerInfoResponse(_message.Message):
    __slots__ = ("version", "boot_id", "start_time", "store", "stores_paused", "loads_paused", "counters", "sessions", "queued_store_chunks", "queued_load_chunks", "active_chunks", "active_store_chunks", "active_load_chunks", "queued_store_bytes", "oldest_active", "open_lookups", "index_entries", "region_bytes", "dead_engine_bytes", "dead_engine_age")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    STORES_PAUSED_FIELD_NUMBER: _ClassVar[int]
    LOADS_PAUSED_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_STORE_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_LOAD_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_STORE_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_LOAD_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_STORE_BYTES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_ACTIVE_FIELD_NUMBER: _ClassVar[int]
    OPEN_LOOKUPS_FIELD_NUMBER: _ClassVar[int]
    INDEX_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    REGION_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEAD_ENGINE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEAD_ENGINE_AGE_FIELD_NUMBER: _ClassVar[int]
    version: str
    boot_id: str
    start_time: _timestamp_pb2.Timestamp
    store: StoreStatus
    stores_paused: bool
    loads_paused: bool
    counters: _containers.ScalarMap[str, int]
    sessions: int
    queued_store_chunks: int
    queued_load_chunks: int
    active_chunks: int
    active_store_chunks: int
    active_load_chunks: int
    queued_store_bytes: int
    oldest_active: _duration_pb2.Duration
    open_lookups: int
    index_entries: int
    region_bytes: int
    dead_engine_bytes: int
    dead_engine_age: _duration_pb2.Duration
    def __init__(self, version: _Optional[str] = ..., boot_id: _Optional[str] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., store: _Optional[_Union[StoreStatus, _Mapping]] = ..., stores_paused: bool = ..., loads_paused: bool = ..., counters: _Optional[_Mapping[str, int]] = ..., sessions: _Optional[int] = ..., queued_store_chunks: _Optional[int] = ..., queued_load_chunks: _Optional[int] = ..., active_chunks: _Optional[int] = ..., active_store_chunks: _Optional[int] = ..., active_load_chunks: _Optional[int] = ..., queued_store_bytes: _Optional[int] = ..., oldest_active: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., open_lookups: _Optional[int] = ..., index_entries: _Optional[int] = ..., region_bytes: _Optional[int] = ..., dead_engine_bytes: _Optional[int] = ..., dead_engine_age: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ListSessionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSessionsResponse(_message.Message):
    __slots__ = ("sessions",)
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[SessionInfo]
    def __init__(self, sessions: _Optional[_Iterable[_Union[SessionInfo, _Mapping]]] = ...) -> None: ...

class SessionInfo(_message.Message):
    __slots__ = ("session_id", "engine_id", "namespace", "slots", "slot_bytes", "region_bytes", "attach_time", "open_jobs", "active_chunks", "closing")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    REGION_BYTES_FIELD_NUMBER: _ClassVar[int]
    ATTACH_TIME_FIELD_NUMBER: _ClassVar[int]
    OPEN_JOBS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    engine_id: str
    namespace: str
    slots: int
    slot_bytes: int
    region_bytes: int
    attach_time: _timestamp_pb2.Timestamp
    open_jobs: int
    active_chunks: int
    closing: bool
    def __init__(self, session_id: _Optional[str] = ..., engine_id: _Optional[str] = ..., namespace: _Optional[str] = ..., slots: _Optional[int] = ..., slot_bytes: _Optional[int] = ..., region_bytes: _Optional[int] = ..., attach_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., open_jobs: _Optional[int] = ..., active_chunks: _Optional[int] = ..., closing: bool = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("session_id", "limit")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    limit: int
    def __init__(self, session_id: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobInfo]
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobInfo, _Mapping]]] = ...) -> None: ...

class JobInfo(_message.Message):
    __slots__ = ("session_id", "job_id", "kind", "request_id", "queued_chunks", "active_chunks", "finished_chunks", "age")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUED_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    job_id: int
    kind: _types_pb2.JobKind
    request_id: str
    queued_chunks: int
    active_chunks: int
    finished_chunks: int
    age: _duration_pb2.Duration
    def __init__(self, session_id: _Optional[str] = ..., job_id: _Optional[int] = ..., kind: _Optional[_Union[_types_pb2.JobKind, str]] = ..., request_id: _Optional[str] = ..., queued_chunks: _Optional[int] = ..., active_chunks: _Optional[int] = ..., finished_chunks: _Optional[int] = ..., age: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class CheckStoreRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckStoreResponse(_message.Message):
    __slots__ = ("store", "steps")
    STORE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    store: StoreStatus
    steps: _containers.RepeatedCompositeFieldContainer[CheckStep]
    def __init__(self, store: _Optional[_Union[StoreStatus, _Mapping]] = ..., steps: _Optional[_Iterable[_Union[CheckStep, _Mapping]]] = ...) -> None: ...

class CheckStep(_message.Message):
    __slots__ = ("name", "passed", "detail", "duration")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    passed: bool
    detail: str
    duration: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., passed: bool = ..., detail: _Optional[str] = ..., duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class PauseRequest(_message.Message):
    __slots__ = ("stores", "loads")
    STORES_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    stores: bool
    loads: bool
    def __init__(self, stores: bool = ..., loads: bool = ...) -> None: ...

class PauseResponse(_message.Message):
    __slots__ = ("stores_paused", "loads_paused")
    STORES_PAUSED_FIELD_NUMBER: _ClassVar[int]
    LOADS_PAUSED_FIELD_NUMBER: _ClassVar[int]
    stores_paused: bool
    loads_paused: bool
    def __init__(self, stores_paused: bool = ..., loads_paused: bool = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ("stores", "loads")
    STORES_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    stores: bool
    loads: bool
    def __init__(self, stores: bool = ..., loads: bool = ...) -> None: ...

class ResumeResponse(_message.Message):
    __slots__ = ("stores_paused", "loads_paused")
    STORES_PAUSED_FIELD_NUMBER: _ClassVar[int]
    LOADS_PAUSED_FIELD_NUMBER: _ClassVar[int]
    stores_paused: bool
    loads_paused: bool
    def __init__(self, stores_paused: bool = ..., loads_paused: bool = ...) -> None: ...

class SetLogLevelRequest(_message.Message):
    __slots__ = ("level",)
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    level: str
    def __init__(self, level: _Optional[str] = ...) -> None: ...

class SetLogLevelResponse(_message.Message):
    __slots__ = ("previous_level",)
    PREVIOUS_LEVEL_FIELD_NUMBER: _ClassVar[int]
    previous_level: str
    def __init__(self, previous_level: _Optional[str] = ...) -> None: ...
