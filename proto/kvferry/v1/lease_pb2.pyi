from kvferry.v1 import offload_pb2 as _offload_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LeaseReply(_message.Message):
    __slots__ = ("attached", "error")
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    attached: _offload_pb2.AttachRegionResponse
    error: AttachError
    def __init__(self, attached: _Optional[_Union[_offload_pb2.AttachRegionResponse, _Mapping]] = ..., error: _Optional[_Union[AttachError, _Mapping]] = ...) -> None: ...

class AttachError(_message.Message):
    __slots__ = ("code", "reason", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    message: str
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...
