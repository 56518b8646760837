from specgate.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerifyRequest(_message.Message):
    __slots__ = ("open", "round", "follow_ups", "keep_alive", "running_draft")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_UPS_FIELD_NUMBER: _ClassVar[int]
    KEEP_ALIVE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_DRAFT_FIELD_NUMBER: _ClassVar[int]
    open: _types_pb2.SessionSpec
    round: VerifyRound
    follow_ups: FollowUps
    keep_alive: _types_pb2.KeepAlive
    running_draft: _types_pb2.RunningDraft
    def __init__(self, open: _Optional[_Union[_types_pb2.SessionSpec, _Mapping]] = ..., round: _Optional[_Union[VerifyRound, _Mapping]] = ..., follow_ups: _Optional[_Union[FollowUps, _Mapping]] = ..., keep_alive: _Optional[_Union[_types_pb2.KeepAlive, _Mapping]] = ..., running_draft: _Optional[_Union[_types_pb2.RunningDraft, _Mapping]] = ...) -> None: ...

class VerifyRound(_message.Message):
    __slots__ = ("round", "position", "proposal", "solo_below", "max_solo_tokens", "running_gamma")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    SOLO_BELOW_FIELD_NUMBER: _ClassVar[int]
    MAX_SOLO_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_GAMMA_FIELD_NUMBER: _ClassVar[int]
    round: int
    position: int
    proposal: _types_pb2.Proposal
    solo_below: float
    max_solo_tokens: int
    running_gamma: int
    def __init__(self, round: _Optional[int] = ..., position: _Optional[int] = ..., proposal: _Optional[_Union[_types_pb2.Proposal, _Mapping]] = ..., solo_below: _Optional[float] = ..., max_solo_tokens: _Optional[int] = ..., running_gamma: _Optional[int] = ...) -> None: ...

class FollowUps(_message.Message):
    __slots__ = ("round", "position", "solo_below", "max_solo_tokens", "branches", "least_confidences")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SOLO_BELOW_FIELD_NUMBER: _ClassVar[int]
    MAX_SOLO_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    LEAST_CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    round: int
    position: int
    solo_below: float
    max_solo_tokens: int
    branches: _types_pb2.Branches
    least_confidences: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, round: _Optional[int] = ..., position: _Optional[int] = ..., solo_below: _Optional[float] = ..., max_solo_tokens: _Optional[int] = ..., branches: _Optional[_Union[_types_pb2.Branches, _Mapping]] = ..., least_confidences: _Optional[_Iterable[float]] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("round", "num_accepted", "token_id", "confidence", "solo", "last", "finish_reason", "near_ties", "verify_us", "logprobs", "opened", "batch_sessions", "batch_rows", "forward_us", "accepted_confidences", "follow_up", "session_idle_ms", "prompt_logprobs", "cached_tokens", "draft_token_ids", "running_drafts")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    SOLO_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    NEAR_TIES_FIELD_NUMBER: _ClassVar[int]
    VERIFY_US_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    BATCH_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    BATCH_ROWS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_US_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_UP_FIELD_NUMBER: _ClassVar[int]
    SESSION_IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    round: int
    num_accepted: int
    token_id: int
    confidence: float
    solo: bool
    last: bool
    finish_reason: _types_pb2.FinishReason
    near_ties: int
    verify_us: int
    logprobs: _containers.RepeatedCompositeFieldContainer[_types_pb2.TokenLogprobs]
    opened: bool
    batch_sessions: int
    batch_rows: int
    forward_us: int
    accepted_confidences: _containers.RepeatedScalarFieldContainer[float]
    follow_up: int
    session_idle_ms: int
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[_types_pb2.TokenLogprobs]
    cached_tokens: int
    draft_token_ids: _containers.RepeatedScalarFieldContainer[int]
    running_drafts: bool
    def __init__(self, round: _Optional[int] = ..., num_accepted: _Optional[int] = ..., token_id: _Optional[int] = ..., confidence: _Optional[float] = ..., solo: bool = ..., last: bool = ..., finish_reason: _Optional[_Union[_types_pb2.FinishReason, str]] = ..., near_ties: _Optional[int] = ..., verify_us: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[_types_pb2.TokenLogprobs, _Mapping]]] = ..., opened: bool = ..., batch_sessions: _Optional[int] = ..., batch_rows: _Optional[int] = ..., forward_us: _Optional[int] = ..., accepted_confidences: _Optional[_Iterable[float]] = ..., follow_up: _Optional[int] = ..., session_idle_ms: _Optional[int] = ..., prompt_logprobs: _Optional[_Iterable[_Union[_types_pb2.TokenLogprobs, _Mapping]]] = ..., cached_tokens: _Optional[int] = ..., draft_token_ids: _Optional[_Iterable[int]] = ..., running_drafts: bool = ...) -> None: ...
