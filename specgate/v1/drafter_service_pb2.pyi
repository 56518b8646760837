from specgate.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DraftRequest(_message.Message):
    __slots__ = ("open", "round", "keep_alive")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    KEEP_ALIVE_FIELD_NUMBER: _ClassVar[int]
    open: _types_pb2.SessionSpec
    round: DraftRound
    keep_alive: _types_pb2.KeepAlive
    def __init__(self, open: _Optional[_Union[_types_pb2.SessionSpec, _Mapping]] = ..., round: _Optional[_Union[DraftRound, _Mapping]] = ..., keep_alive: _Optional[_Union[_types_pb2.KeepAlive, _Mapping]] = ...) -> None: ...

class DraftRound(_message.Message):
    __slots__ = ("round", "position", "num_accepted", "token_ids", "gamma", "stop_below", "prepare", "running")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    GAMMA_FIELD_NUMBER: _ClassVar[int]
    STOP_BELOW_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    round: int
    position: int
    num_accepted: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    gamma: int
    stop_below: float
    prepare: int
    running: int
    def __init__(self, round: _Optional[int] = ..., position: _Optional[int] = ..., num_accepted: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., gamma: _Optional[int] = ..., stop_below: _Optional[float] = ..., prepare: _Optional[int] = ..., running: _Optional[int] = ...) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("round", "proposal", "from_run_ahead", "draft_us", "opened", "announced", "num_prepared", "method", "session_idle_ms", "draft_confidences", "running")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    FROM_RUN_AHEAD_FIELD_NUMBER: _ClassVar[int]
    DRAFT_US_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCED_FIELD_NUMBER: _ClassVar[int]
    NUM_PREPARED_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    SESSION_IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    round: int
    proposal: _types_pb2.Proposal
    from_run_ahead: bool
    draft_us: int
    opened: bool
    announced: Announcement
    num_prepared: int
    method: _types_pb2.DraftMethod
    session_idle_ms: int
    draft_confidences: _containers.RepeatedScalarFieldContainer[float]
    running: _types_pb2.RunningDraft
    def __init__(self, round: _Optional[int] = ..., proposal: _Optional[_Union[_types_pb2.Proposal, _Mapping]] = ..., from_run_ahead: bool = ..., draft_us: _Optional[int] = ..., opened: bool = ..., announced: _Optional[_Union[Announcement, _Mapping]] = ..., num_prepared: _Optional[int] = ..., method: _Optional[_Union[_types_pb2.DraftMethod, str]] = ..., session_idle_ms: _Optional[int] = ..., draft_confidences: _Optional[_Iterable[float]] = ..., running: _Optional[_Union[_types_pb2.RunningDraft, _Mapping]] = ...) -> None: ...

class Announcement(_message.Message):
    __slots__ = ("position", "num_committed", "num_draft_tokens", "token_ids", "gamma", "stop_below", "methods", "draft_confidences")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    NUM_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    GAMMA_FIELD_NUMBER: _ClassVar[int]
    STOP_BELOW_FIELD_NUMBER: _ClassVar[int]
    METHODS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    position: int
    num_committed: _containers.RepeatedScalarFieldContainer[int]
    num_draft_tokens: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    gamma: int
    stop_below: float
    methods: _containers.RepeatedScalarFieldContainer[_types_pb2.DraftMethod]
    draft_confidences: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, position: _Optional[int] = ..., num_committed: _Optional[_Iterable[int]] = ..., num_draft_tokens: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., gamma: _Optional[int] = ..., stop_below: _Optional[float] = ..., methods: _Optional[_Iterable[_Union[_types_pb2.DraftMethod, str]]] = ..., draft_confidences: _Optional[_Iterable[float]] = ...) -> None: ...
