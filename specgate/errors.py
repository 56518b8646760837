"""The one exception tree. Callers branch on the class or on ``reason``, never on message text.

    SpecgateError
    ├── InvalidArgument          INVALID_ARGUMENT       a field is out of its limits
    ├── TokenizerMismatch        TOKENIZER_MISMATCH     draft and target do not share their token ids
    ├── UnsupportedArchitecture  UNSUPPORTED_ARCHITECTURE
    ├── ModelLoadError           MODEL_LOAD_FAILED      no such model, or files that are not loaded here
    ├── OutOfSync                OUT_OF_SYNC            a round starts from another length than the session's
    ├── LeaseRefused             LEASE_REFUSED          a session without the one-time token it needs
    ├── Unauthenticated          UNAUTHENTICATED        a client without a key, or with an unknown one
    ├── PermissionDenied         PERMISSION_DENIED      a client whose key was revoked
    ├── SessionIdle              SESSION_IDLE           a session whose client says nothing
    ├── ResourceExhausted
    │   ├── KVCacheFull          KV_CACHE_FULL
    │   ├── RateLimited          RATE_LIMITED           a key that asks for more than it may
    │   └── TooManySessions      TOO_MANY_SESSIONS
    ├── ServiceUnavailable       SERVICE_UNAVAILABLE    loading, draining, dead or unreachable
    └── InternalError            INTERNAL
        ├── NonFiniteLogits      NONFINITE_LOGITS       the model answered NaN or infinity
        └── EngineFailed         ENGINE_FAILED          the device or the thread that owns it is lost

Foreign exceptions become one of these at the seam that meets them: ``rpc/status.py`` for gRPC.
"""

from typing import ClassVar, Self

MAX_REASON_CHARACTERS = 512
"""Torch puts whole stacks of C++ into a message."""


MAX_PROBLEM = 1000
"""Characters of what is said of a model's files."""


class SpecgateError(Exception):
    """Base of everything that specgate raises on purpose."""

    reason: ClassVar[str] = "INTERNAL"
    retry_after_s: float | None = None


class InvalidArgument(SpecgateError):
    """A value that arrived is out of its limits; ``field`` names it."""

    reason = "INVALID_ARGUMENT"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class TokenizerMismatch(SpecgateError):
    """The two models do not share their token ids; ``component`` names the first difference."""

    reason = "TOKENIZER_MISMATCH"


class UnsupportedArchitecture(SpecgateError):
    """The model asks for something that the paged attention does not compute."""

    reason = "UNSUPPORTED_ARCHITECTURE"


class ModelLoadError(SpecgateError):
    """The model cannot be loaded: not found, no safetensors, or code of its own.

    Files name what they hold, and anybody may have made them: the message is one line, of a bounded length.
    """

    reason = "MODEL_LOAD_FAILED"

    def __init__(self, problem: str) -> None:
        super().__init__("".join(one if one.isprintable() else " " for one in problem[:MAX_PROBLEM]))

    @classmethod
    def of(cls, error: Exception, what: str = "") -> Self:
        """Return what a library's error comes to: its kind and its first line, after ``what`` could not be read."""
        first_line = (str(error).strip().splitlines() or [""])[0]
        return cls((f"{what}: " if what else "") + f"{type(error).__name__}: {first_line}")


class OutOfSync(SpecgateError):
    """A round started from another committed length than the session holds."""

    reason = "OUT_OF_SYNC"


class LeaseRefused(SpecgateError):
    """The session's lease token is missing, unknown or spent."""

    reason = "LEASE_REFUSED"


class Unauthenticated(SpecgateError):
    """The client shows no key, or an unknown one."""

    reason = "UNAUTHENTICATED"


class PermissionDenied(SpecgateError):
    """The client's key was revoked."""

    reason = "PERMISSION_DENIED"


class SessionIdle(SpecgateError):
    """The session's client said nothing for too long: not its first message, or no more since the last one."""

    reason = "SESSION_IDLE"


class ResourceExhausted(SpecgateError):
    """Full for now; ``retry_after_s`` says when to come back."""

    reason = "RESOURCE_EXHAUSTED"
    retry_after_s = 1.0


class KVCacheFull(ResourceExhausted):
    """No KV pages are free for the session's whole length."""

    reason = "KV_CACHE_FULL"


class RateLimited(ResourceExhausted):
    """A key asks for more than it may."""

    reason = "RATE_LIMITED"

    def __init__(self, problem: str, retry_after_s: float = 1.0) -> None:
        super().__init__(problem)
        self.retry_after_s = retry_after_s


class TooManySessions(ResourceExhausted):
    """The service already has as many sessions as it may have."""

    reason = "TOO_MANY_SESSIONS"


class ServiceUnavailable(SpecgateError):
    """The service is loading, draining, dead or out of reach."""

    reason = "SERVICE_UNAVAILABLE"
    retry_after_s = 1.0


class InternalError(SpecgateError):
    """A bug or a broken device on our side."""

    reason = "INTERNAL"


class NonFiniteLogits(InternalError):
    """The model answered NaN or infinity for this session."""

    reason = "NONFINITE_LOGITS"


class EngineFailed(InternalError):
    """The engine thread or its device is lost; the process is about to exit."""

    reason = "ENGINE_FAILED"


def reason_of(error: BaseException) -> str:
    """Return the class of ``error`` and what it says, in one line for logs; the class alone where it says nothing."""
    said = " ".join(str(error).split())[:MAX_REASON_CHARACTERS]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


MISCONFIGURED = (InvalidArgument, TokenizerMismatch, UnsupportedArchitecture)
"""Errors that no other attempt and no other service would mend: they are raised where they occur first."""
