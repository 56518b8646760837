"""One tree of errors, with reasons that callers may hold on to."""

import inspect

import pytest

from specgate import errors
from specgate.errors import (
    MAX_PROBLEM,
    ModelLoadError,
    ResourceExhausted,
    ServiceUnavailable,
    SpecgateError,
    reason_of,
)

TREE = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, SpecgateError)}
REASONS = {
    "SpecgateError": "INTERNAL",
    "InvalidArgument": "INVALID_ARGUMENT",
    "TokenizerMismatch": "TOKENIZER_MISMATCH",
    "UnsupportedArchitecture": "UNSUPPORTED_ARCHITECTURE",
    "ModelLoadError": "MODEL_LOAD_FAILED",
    "OutOfSync": "OUT_OF_SYNC",
    "LeaseRefused": "LEASE_REFUSED",
    "Unauthenticated": "UNAUTHENTICATED",
    "PermissionDenied": "PERMISSION_DENIED",
    "SessionIdle": "SESSION_IDLE",
    "ResourceExhausted": "RESOURCE_EXHAUSTED",
    "KVCacheFull": "KV_CACHE_FULL",
    "RateLimited": "RATE_LIMITED",
    "TooManySessions": "TOO_MANY_SESSIONS",
    "ServiceUnavailable": "SERVICE_UNAVAILABLE",
    "InternalError": "INTERNAL",
    "NonFiniteLogits": "NONFINITE_LOGITS",
    "EngineFailed": "ENGINE_FAILED",
}


def test_reasons_do_not_change() -> None:
    """They cross the wire: another release, and a client in another language, branch on them."""
    assert {name: kind.reason for name, kind in TREE.items()} == REASONS


def test_what_passes_says_when_to_come_back() -> None:
    for name, kind in TREE.items():
        passes = issubclass(kind, ResourceExhausted | ServiceUnavailable)
        assert (kind.retry_after_s is not None) == passes, name


@pytest.mark.parametrize("error", [TimeoutError(), ServiceUnavailable(""), KeyError("x\n y"), ValueError("z" * 9999)])
def test_a_reason_is_one_short_line_and_never_empty(error: Exception) -> None:
    reason = reason_of(error)
    assert reason.startswith(type(error).__name__)
    assert not reason.endswith((" ", ":"))
    assert "\n" not in reason
    assert len(reason) < 600


def test_what_a_file_holds_makes_no_message_of_two_lines_or_without_end() -> None:
    told = str(ModelLoadError("a\nb\x1b[31m" * 999))
    assert told.startswith("a b [31ma b")
    assert len(told) == MAX_PROBLEM
