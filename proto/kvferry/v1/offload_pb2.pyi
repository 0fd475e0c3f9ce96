from google.protobuf import duration_pb2 as _duration_pb2
from kvferry.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobAdmission(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_ADMISSION_UNSPECIFIED: _ClassVar[JobAdmission]
    JOB_ADMISSION_ACCEPTED: _ClassVar[JobAdmission]
    JOB_ADMISSION_JOINED: _ClassVar[JobAdmission]
    JOB_ADMISSION_ALREADY_REPORTED: _ClassVar[JobAdmission]
JOB_ADMISSION_UNSPECIFIED: JobAdmission
JOB_ADMISSION_ACCEPTED: JobAdmission
JOB_ADMISSION_JOINED: JobAdmission
JOB_ADMISSION_ALREADY_REPORTED: JobAdmission

class AttachRegionRequest(_message.Message):
    __slots__ = ("client_version", "features", "engine_id", "namespace", "slot_bytes", "slot_stride_bytes", "segments", "vllm_namespace")
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLOT_STRIDE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    VLLM_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    client_version: str
    features: _containers.RepeatedScalarFieldContainer[str]
    engine_id: str
    namespace: str
    slot_bytes: int
    slot_stride_bytes: int
    segments: _containers.RepeatedCompositeFieldContainer[RegionSegment]
    vllm_namespace: str
    def __init__(self, client_version: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., engine_id: _Optional[str] = ..., namespace: _Optional[str] = ..., slot_bytes: _Optional[int] = ..., slot_stride_bytes: _Optional[int] = ..., segments: _Optional[_Iterable[_Union[RegionSegment, _Mapping]]] = ..., vllm_namespace: _Optional[str] = ...) -> None: ...

class RegionSegment(_message.Message):
    __slots__ = ("offset_bytes", "slot_count", "shm_name")
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    SHM_NAME_FIELD_NUMBER: _ClassVar[int]
    offset_bytes: int
    slot_count: int
    shm_name: str
    def __init__(self, offset_bytes: _Optional[int] = ..., slot_count: _Optional[int] = ..., shm_name: _Optional[str] = ...) -> None: ...

class AttachRegionResponse(_message.Message):
    __slots__ = ("session", "boot_id", "limits", "server_version", "features")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    session: _types_pb2.SessionRef
    boot_id: str
    limits: _types_pb2.Limits
    server_version: str
    features: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, session: _Optional[_Union[_types_pb2.SessionRef, _Mapping]] = ..., boot_id: _Optional[str] = ..., limits: _Optional[_Union[_types_pb2.Limits, _Mapping]] = ..., server_version: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ...) -> None: ...

class DetachRegionRequest(_message.Message):
    __slots__ = ("session", "max_wait")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_FIELD_NUMBER: _ClassVar[int]
    session: _types_pb2.SessionRef
    max_wait: _duration_pb2.Duration
    def __init__(self, session: _Optional[_Union[_types_pb2.SessionRef, _Mapping]] = ..., max_wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class DetachRegionResponse(_message.Message):
    __slots__ = ("boot_id",)
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    boot_id: str
    def __init__(self, boot_id: _Optional[str] = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("session", "groups", "timeout")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    session: _types_pb2.SessionRef
    groups: _containers.RepeatedCompositeFieldContainer[LookupGroup]
    timeout: _duration_pb2.Duration
    def __init__(self, session: _Optional[_Union[_types_pb2.SessionRef, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[LookupGroup, _Mapping]]] = ..., timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class LookupGroup(_message.Message):
    __slots__ = ("context", "prefix_ordered", "keys")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    PREFIX_ORDERED_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    context: _types_pb2.RequestContext
    prefix_ordered: bool
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, context: _Optional[_Union[_types_pb2.RequestContext, _Mapping]] = ..., prefix_ordered: bool = ..., keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class LookupResponse(_message.Message):
    __slots__ = ("boot_id", "groups")
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    boot_id: str
    groups: _containers.RepeatedCompositeFieldContainer[LookupVerdicts]
    def __init__(self, boot_id: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[LookupVerdicts, _Mapping]]] = ...) -> None: ...

class LookupVerdicts(_message.Message):
    __slots__ = ("verdicts",)
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    verdicts: _containers.RepeatedScalarFieldContainer[_types_pb2.Presence]
    def __init__(self, verdicts: _Optional[_Iterable[_Union[_types_pb2.Presence, str]]] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("job_id", "keys", "slots", "context")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    slots: _containers.RepeatedScalarFieldContainer[int]
    context: _types_pb2.RequestContext
    def __init__(self, job_id: _Optional[int] = ..., keys: _Optional[_Iterable[bytes]] = ..., slots: _Optional[_Iterable[int]] = ..., context: _Optional[_Union[_types_pb2.RequestContext, _Mapping]] = ...) -> None: ...

class StoreRequest(_message.Message):
    __slots__ = ("session", "jobs")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    session: _types_pb2.SessionRef
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    def __init__(self, session: _Optional[_Union[_types_pb2.SessionRef, _Mapping]] = ..., jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ...) -> None: ...

class StoreResponse(_message.Message):
    __slots__ = ("boot_id", "admissions")
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    ADMISSIONS_FIELD_NUMBER: _ClassVar[int]
    boot_id: str
    admissions: _containers.RepeatedScalarFieldContainer[JobAdmission]
    def __init__(self, boot_id: _Optional[str] = ..., admissions: _Optional[_Iterable[_Union[JobAdmission, str]]] = ...) -> None: ...

class LoadRequest(_message.Message):
    __slots__ = ("session", "jobs")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    session: _types_pb2.SessionRef
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    def __init__(self, session: _Optional[_Union[_types_pb2.SessionRef, _Mapping]] = ..., jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ...) -> None: ...

class LoadResponse(_message.Message):
    __slots__ = ("boot_id", "admissions")
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    ADMISSIONS_FIELD_NUMBER: _ClassVar[int]
    boot_id: str
    admissions: _containers.RepeatedScalarFieldContainer[JobAdmission]
    def __init__(self, boot_id: _Optional[str] = ..., admissions: _Optional[_Iterable[_Union[JobAdmission, str]]] = ...) -> None: ...

class PollRequest(_message.Message):
    __slots__ = ("session", "ack_seq", "max_wait")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ACK_SEQ_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_FIELD_NUMBER: _ClassVar[int]
    session: _types_pb2.SessionRef
    ack_seq: int
    max_wait: _duration_pb2.Duration
    def __init__(self, session: _Optional[_Union[_types_pb2.SessionRef, _Mapping]] = ..., ack_seq: _Optional[int] = ..., max_wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class PollResponse(_message.Message):
    __slots__ = ("boot_id", "results", "superseded")
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDED_FIELD_NUMBER: _ClassVar[int]
    boot_id: str
    results: _containers.RepeatedCompositeFieldContainer[JobResult]
    superseded: bool
    def __init__(self, boot_id: _Optional[str] = ..., results: _Optional[_Iterable[_Union[JobResult, _Mapping]]] = ..., superseded: bool = ...) -> None: ...

class JobResult(_message.Message):
    __slots__ = ("seq", "job_id", "kind", "outcomes", "transferred_bytes", "transfer_time")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    TRANSFERRED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_TIME_FIELD_NUMBER: _ClassVar[int]
    seq: int
    job_id: int
    kind: _types_pb2.JobKind
    outcomes: _containers.RepeatedScalarFieldContainer[_types_pb2.ChunkOutcome]
    transferred_bytes: int
    transfer_time: _duration_pb2.Duration
    def __init__(self, seq: _Optional[int] = ..., job_id: _Optional[int] = ..., kind: _Optional[_Union[_types_pb2.JobKind, str]] = ..., outcomes: _Optional[_Iterable[_Union[_types_pb2.ChunkOutcome, str]]] = ..., transferred_bytes: _Optional[int] = ..., transfer_time: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("session", "max_wait")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_FIELD_NUMBER: _ClassVar[int]
    session: _types_pb2.SessionRef
    max_wait: _duration_pb2.Duration
    def __init__(self, session: _Optional[_Union[_types_pb2.SessionRef, _Mapping]] = ..., max_wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("boot_id", "running_jobs")
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    RUNNING_JOBS_FIELD_NUMBER: _ClassVar[int]
    boot_id: str
    running_jobs: int
    def __init__(self, boot_id: _Optional[str] = ..., running_jobs: _Optional[int] = ...) -> None: ...
