"""What a key's requests cost it, and one audit line for each answer, without prompt or text."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256

from orchestrator.api.keys.keyring import CALLER, Caller
from orchestrator.decode.request import GenerationRequest, GenerationStats
from specgate.errors import InvalidArgument, SpecgateError

_log = logging.getLogger("specgate.audit")


@dataclass(slots=True)
class Account:
    """The requests of one answer as the caller may make them, and their statistics so far."""

    requests: Sequence[GenerationRequest]
    stats: Sequence[GenerationStats] = field(default=())


@contextmanager
def charged(requests: Sequence[GenerationRequest]) -> Iterator[Account]:
    """Charge requests, and at the end the tokens in ``stats``, to the running task's caller, if there is one.

    Raises:
        InvalidArgument: the caller may never run so many.
        RateLimited: the caller asks for more than it may.
    """
    caller = CALLER.get()
    if caller is None:
        yield Account(requests)
        return
    num_prompt_tokens = sum(len(request.prompt_token_ids) for request in requests)
    account, outcome = Account([_private(request, caller) for request in requests]), "OK"
    with caller.use.admitted(len(requests), num_prompt_tokens):
        try:
            yield account
        except BaseException as error:
            outcome = error.reason if isinstance(error, SpecgateError) else "CANCELLED"
            raise
        finally:
            num_tokens = sum(one.completion_tokens for one in account.stats)
            caller.use.add_tokens(num_tokens)
            counts = f"{len(requests)} requests, {num_prompt_tokens} prompt tokens, {num_tokens} tokens"
            _log.info("key %s: %s: %s", caller.name, counts, outcome)


def charge_request() -> None:
    """Charge the running task's caller a request of this minute, for work that does not run in the queue.

    Raises:
        RateLimited: the caller has none left.
    """
    if (caller := CALLER.get()) is not None:
        caller.use.charge()


@contextmanager
def charged_if_refused() -> Iterator[None]:
    """Charge the running task's caller a request if the block refuses something after work on it.

    Raises:
        RateLimited: the caller has none left; before the block.
    """
    caller = CALLER.get()
    if caller is not None:
        caller.use.check(1)
    try:
        yield
    except InvalidArgument:
        if caller is not None:
            caller.use.take(1)
        raise


def audit_refusal(error: SpecgateError) -> None:
    """Log a request of the running task's caller that was not admitted."""
    if (caller := CALLER.get()) is not None:
        _log.info("key %s: refused: %s", caller.name, error.reason)


def _private(request: GenerationRequest, caller: Caller) -> GenerationRequest:
    """Return the request with a cache of its key's own: speed would tell other keys that a prompt was asked before."""
    return replace(request, cache_salt=sha256(f"{caller.name}\0{request.cache_salt}".encode()).hexdigest())
