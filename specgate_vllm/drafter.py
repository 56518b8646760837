"""One drafter service: its channel, how fast it answers, and when it may be asked again after it was lost."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from specgate_vllm.settings import Settings
from specgate_vllm.v1.drafter_service_pb2_grpc import DrafterServiceStub

FIRST_BACK_OFF_S, LAST_BACK_OFF_S = 0.1, 2.0
REFUSED_S = 30.0
"""A drafter that does not fit, such as one with another tokenizer, is asked again after so long."""
FULL_S = 0.5
LEARN, MOST_OFF = 0.2, 4.0
# As specgate's own channels have them. A drafter is addressed directly: HTTP_PROXY is for other traffic.
OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
_log = logging.getLogger(__name__)


class Drafter:
    """One endpoint. ``stub`` and ``lost`` are called by the loop's thread, all under the board's lock."""

    def __init__(self, endpoint: str, settings: Settings) -> None:
        self.endpoint, self._settings = endpoint, settings
        self.answer_s = {True: 0.0, False: 0.0}
        """Seconds of answers that were not prepared: of a session's first, with its prefill, and later. 0: unknown."""
        self.num_sessions = self.num_answers = 0
        self.is_silent = False
        """A step waited for it in vain, or it was lost, and it has not answered since: nobody waits for it."""
        self.closed_until_s = self._backing_off_until_s = 0.0
        self._num_failures = 0
        self._channel: grpc.aio.Channel | None = None

    def stub(self) -> Any:
        """Return the stub of a channel that connects at its first call. Raises OSError of a TLS file."""
        if self._channel is None:
            self._channel = open_channel(self.endpoint, self._settings)
        return DrafterServiceStub(self._channel)

    def learn(self, seconds: float, *, is_first: bool) -> None:
        """Count the time of an answer."""
        mean_s = self.answer_s[is_first]
        self.answer_s[is_first] = mean_s + LEARN * (min(seconds, MOST_OFF * mean_s) - mean_s) if mean_s else seconds

    def answered(self) -> None:
        """Note that it is alive."""
        if self._num_failures:
            _log.warning("drafts come from %s again", self.endpoint)
        self.num_answers += 1
        self.is_silent, self._num_failures = False, 0

    def lost(self, why: str, *, fits: bool = True) -> None:
        """Ask it nothing for a while, longer each time; then over a new channel: the old one waits by itself."""
        now_s = time.monotonic()
        if now_s < self._backing_off_until_s:
            return
        if not self._num_failures:
            _log.warning("no drafts from %s: %s; vLLM goes on without", self.endpoint, why)
        back_off_s = min(FIRST_BACK_OFF_S * 2.0 ** min(self._num_failures, 9), LAST_BACK_OFF_S) if fits else REFUSED_S
        self._num_failures += 1
        self.is_silent = True
        self.closed_until_s = self._backing_off_until_s = now_s + back_off_s
        # It is closed with the last session that holds it.
        self._channel = None

    def full(self) -> None:
        """Open no more sessions for a while; those that run go on."""
        self.closed_until_s = max(self.closed_until_s, time.monotonic() + FULL_S)


def open_channel(endpoint: str, settings: Settings) -> grpc.aio.Channel:
    """Return a channel, over TLS if there is an authority's file. Raises OSError for a file that cannot be read."""
    if not settings.tls_ca:
        return grpc.aio.insecure_channel(endpoint, OPTIONS)
    own = [Path(file).read_bytes() for file in (settings.tls_key, settings.tls_certificate) if file]
    credentials = grpc.ssl_channel_credentials(Path(settings.tls_ca).read_bytes(), *own)
    name = (("grpc.ssl_target_name_override", settings.tls_name),) if settings.tls_name else ()
    return grpc.aio.secure_channel(endpoint, credentials, (*OPTIONS, *name))


def pick(drafters: Sequence[Drafter]) -> Drafter | None:
    """Return the drafter with the fewest sessions among those that may be asked now; None: nobody.

    One that was lost gets one session: whether it is back shows there.
    """
    now_s = time.monotonic()
    there = [one for one in drafters if now_s >= one.closed_until_s]
    return min(there, key=lambda one: (one.is_silent and one.num_sessions > 0, one.num_sessions), default=None)
