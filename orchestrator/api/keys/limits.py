"""The limits of one key: running requests, requests and tokens a minute. Each gateway replica counts by itself."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orchestrator.api.keys.key_file import KeyLimits
from specgate.errors import InvalidArgument, RateLimited

MINUTE_S = 60.0


class TokenBucket:
    """Fills evenly up to a minute's worth. It may be overdrawn: what an answer costs is known at its end.

    Args:
        per_minute: the amount that flows in.
        clock: returns seconds.
    """

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_minute / MINUTE_S
        self._most = per_minute
        self._level = per_minute
        self._clock = clock
        self._at_s = clock()

    @property
    def used(self) -> float:
        """What is missing to a full bucket."""
        self._fill()
        return self._most - self._level

    def take(self, amount: float) -> None:
        """Take ``amount``, whatever is left."""
        self._fill()
        self._level -= amount

    def wait_s(self, amount: float = 0.0) -> float:
        """Return the seconds until ``amount`` is in it. An amount that never fits needs a full bucket."""
        self._fill()
        missing = min(amount, self._most) - self._level
        return max(0.0, missing / self._per_s)

    def _fill(self) -> None:
        now_s = self._clock()
        self._level = min(self._most, self._level + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s


class KeyUse:
    """What one key runs, and what is left of its minute.

    Args:
        name: the key's, for messages.
    """

    def __init__(self, name: str, limits: KeyLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.num_running = 0
        self._name = name
        self._clock = clock
        self._max_running = limits.max_running
        self._requests = _bucket(limits.requests_per_minute, clock)
        self._tokens = _bucket(limits.tokens_per_minute, clock)

    def change(self, limits: KeyLimits) -> None:
        """Set other limits. What runs and what was used up still counts: a limited key does not start anew."""
        self.limits = limits
        self._max_running = limits.max_running
        self._requests = _bucket(limits.requests_per_minute, self._clock, self._requests)
        self._tokens = _bucket(limits.tokens_per_minute, self._clock, self._tokens)

    @contextmanager
    def admitted(self, num_requests: int, num_tokens: int) -> Iterator[None]:
        """Count requests for as long as the block lasts.

        Args:
            num_tokens: of their prompts.

        Raises:
            InvalidArgument: the key may never run so many; names ``n``.
            RateLimited: with them the key asks for more than it may; ``retry_after_s`` says when to try again.
        """
        self.check(num_requests, num_tokens)
        self.take(num_requests, num_tokens)
        self.num_running += num_requests
        try:
            yield
        finally:
            self.num_running -= num_requests

    def add_tokens(self, num_tokens: int) -> None:
        """Count tokens of an answer."""
        self.take(0, num_tokens)

    def take(self, num_requests: int, num_tokens: int = 0) -> None:
        """Count requests and tokens of this minute, whatever is left of it."""
        if self._requests is not None:
            self._requests.take(num_requests)
        if self._tokens is not None:
            self._tokens.take(num_tokens)

    def check(self, num_requests: int, num_tokens: int = 0) -> None:
        """Raise what ``admitted`` would raise."""
        if self._max_running is not None and num_requests > self._max_running:
            raise InvalidArgument(
                "n", f"asks for {num_requests} choices; the key {self._name} may run {self._max_running}"
            )
        if self._max_running is not None and self.num_running + num_requests > self._max_running:
            raise RateLimited(f"the key {self._name} has {self.num_running} of {self._max_running} requests running")
        self._check_minute(num_requests, num_tokens)

    def charge(self) -> None:
        """Count a request of this minute that does not run in the queue. Raises RateLimited: none is left."""
        self._check_minute(1)
        self.take(1)

    def _check_minute(self, num_requests: int, num_tokens: int = 0) -> None:
        for what, bucket, amount in (
            ("requests", self._requests, num_requests),
            ("tokens", self._tokens, num_tokens),
        ):
            if bucket is not None and (wait_s := bucket.wait_s(amount)) > 0:
                raise RateLimited(f"the key {self._name} has used its {what} of this minute", math.ceil(wait_s))


def _bucket(
    per_minute: int | None, clock: Callable[[], float], before: TokenBucket | None = None
) -> TokenBucket | None:
    """Return a bucket from which as much is used as from the one before."""
    if per_minute is None:
        return None
    bucket = TokenBucket(per_minute, clock)
    if before is not None:
        bucket.take(before.used)
    return bucket
