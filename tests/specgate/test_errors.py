"""One tree of errors, with reasons that callers may hold on to."""

import inspect

import pytest

from specgate import errors
from specgate.errors import InvalidArgument, ResourceExhausted, ServiceUnavailable, SpecgateError

TREE = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, SpecgateError)}
REASONS = {
    "SpecgateError": "INTERNAL",
    "InvalidArgument": "INVALID_ARGUMENT",
    "TokenizerMismatch": "TOKENIZER_MISMATCH",
    "UnsupportedArchitecture": "UNSUPPORTED_ARCHITECTURE",
    "ModelLoadError": "MODEL_LOAD_FAILED",
    "OutOfSync": "OUT_OF_SYNC",
    "LeaseRefused": "LEASE_REFUSED",
    "ResourceExhausted": "RESOURCE_EXHAUSTED",
    "KVCacheFull": "KV_CACHE_FULL",
    "TooManySessions": "TOO_MANY_SESSIONS",
    "ServiceUnavailable": "SERVICE_UNAVAILABLE",
    "InternalError": "INTERNAL",
    "NonFiniteLogits": "NONFINITE_LOGITS",
    "EngineFailed": "ENGINE_FAILED",
}


def test_reasons_do_not_change() -> None:
    """They cross the wire: another release, and a client in another language, branch on them."""
    assert {name: kind.reason for name, kind in TREE.items()} == REASONS


@pytest.mark.parametrize("name", sorted(set(REASONS) - {"SpecgateError"}))
def test_the_drawing_in_the_docstring_names_every_error(name: str) -> None:
    lines = [line for line in (errors.__doc__ or "").splitlines() if name in line]
    assert len(lines) == 1
    depth = lines[0].index(name) // 4 - 1
    assert depth == TREE[name].__mro__.index(SpecgateError)
    tail = lines[0].split(name)[1].split()
    assert not tail or tail[0] == TREE[name].reason


def test_an_invalid_argument_keeps_field_and_problem_apart() -> None:
    error = InvalidArgument("top_p", "is odd")
    assert (error.field, error.problem, str(error)) == ("top_p", "is odd", "top_p: is odd")


def test_what_passes_says_when_to_come_back() -> None:
    for name, kind in TREE.items():
        passes = issubclass(kind, ResourceExhausted | ServiceUnavailable)
        assert (kind.retry_after_s is not None) == passes, name
