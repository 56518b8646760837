"""What a client is told of a failure that is not its own."""

import logging

from specgate.errors import InternalError, ServiceUnavailable

OUT_OF_REACH = "no verifier is within reach now"
FAILED_HERE = "the request failed here; the log has the reason under its id"

_log = logging.getLogger(__name__)


def for_strangers(error: Exception) -> Exception:
    """Return the error without what no stranger should learn: which verifiers there are, at which addresses."""
    if isinstance(error, InternalError):
        hidden = type(error)(FAILED_HERE)
        # The door logs it, with its cause.
        hidden.__cause__ = error
        return hidden
    if not isinstance(error, ServiceUnavailable):
        return error
    _log.warning("a request lost its verifier: %s", error)
    return ServiceUnavailable(OUT_OF_REACH)
