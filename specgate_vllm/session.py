"""One request of vLLM and its session on a drafter. The board's lock guards both."""

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from specgate_vllm.drafter import Drafter
from specgate_vllm.drafts import KnownDrafts
from specgate_vllm.v1 import drafter_service_pb2 as pb
from specgate_vllm.v1 import types_pb2
from specgate_vllm.worth import Acceptance

MAX_ASKED = 3
"""Rounds without an answer; a drafter that is further behind is asked no more until it answers."""
MAX_GAMMA = 64
CATCH_UP = 32
"""Committed tokens that a drafter which is asked for nothing gets at a time: each message takes some of vLLM's core."""
OPEN_S, FIRST_ANSWER_S, ANSWER_S = 2.0, 30.0, 2.0
"""After so long in silence a drafter is lost: at the opening, at the first round with its prefill, and later."""
GONE_S = 0.3
"""vLLM does not say when a request ends: its session is closed so long after the first step that misses it."""


class Nonsense(ValueError):
    """A drafter sent what the contract does not permit."""


class Asked(NamedTuple):
    """A round without an answer: the committed length, γ and the time."""

    length: int
    gamma: int
    at_s: float


class Session:
    """A request, known by the bytes of its tokens, as vLLM holds them. ``others``: see ``Acceptance``."""

    def __init__(
        self, tokens: bytes, opening: types_pb2.SessionSpec, drafter: Drafter, others: Acceptance, vocab_size: int
    ) -> None:
        length = len(opening.prompt_token_ids)
        self.tokens, self.known = bytearray(tokens), KnownDrafts(length)
        self.drafter, self.acceptance = drafter, Acceptance(others)
        self.num_drafted = 0
        """Draft tokens that vLLM has for the step that runs."""
        self.missed_at_s: float | None = None
        """When a step went by without this request."""
        self.is_opened = self.is_closed = self.is_refused = False
        self.outbox: asyncio.Queue[pb.DraftRequest] = asyncio.Queue()
        self.outbox.put_nowait(pb.DraftRequest(open=opening))
        self.task: asyncio.Task[None] | None = None
        self._vocab_size = vocab_size
        self._sent, self._round, self._answered_length = length, 0, -1
        self._asked: dict[int, Asked] = {}
        self._began_s = time.monotonic()

    @property
    def length(self) -> int:
        return self.known.length

    @property
    def is_ready(self) -> bool:
        """Whether nothing more comes for the committed tokens."""
        return self.is_closed or self.is_refused or self._answered_length == self.length

    @property
    def is_gone(self) -> bool:
        """Whether the request has ended, as far as can be seen."""
        return self.missed_at_s is not None and time.monotonic() - self.missed_at_s > GONE_S

    @property
    def expected_s(self) -> float:
        """How long an answer takes, as far as is known; infinite where waiting makes no sense."""
        is_behind = any(asked.length < self.length for asked in self._asked.values())
        is_vain = self.drafter.is_silent or is_behind or not self._asked
        return math.inf if is_vain else self.drafter.answer_s[self._answered_length < 0]

    def commit(self, tokens: bytes, ids: Sequence[int]) -> None:
        """Append what the target chose."""
        self.tokens += tokens
        self.known.commit(ids)

    def ask(self, gamma: int, stop_below: float) -> pb.DraftRound | None:
        """Return a round with the new tokens that asks for ``gamma`` more; None: there is nothing to say.

        Or the drafter is too far behind to be asked.
        """
        if self.is_closed or self.is_refused or len(self._asked) >= MAX_ASKED:
            return None
        if not gamma and self.length - self._sent < CATCH_UP:
            return None
        self._round += 1
        if gamma:
            self._asked[self._round] = Asked(self.length, gamma, time.monotonic())
        start, self._sent = self._sent, self.length
        ids = self.known.since(start)
        return pb.DraftRound(round=self._round, position=start, token_ids=ids, gamma=gamma, stop_below=stop_below)

    def read(self, response: Any) -> None:
        """Take what the drafter sent. Raises Nonsense."""
        if response.HasField("announced"):
            self._read_announcement(response.announced)
        elif response.opened:
            self.is_opened = True
        else:
            self._read_answer(response)
        self.drafter.answered()

    def silence(self) -> str:
        """Return why its drafter counts as lost; empty: it does not."""
        limit_s = OPEN_S if not self.is_opened else FIRST_ANSWER_S if self._answered_length < 0 else ANSWER_S
        since_s = min((one.at_s for one in self._asked.values()), default=math.inf) if self.is_opened else self._began_s
        is_late = not self.is_refused and time.monotonic() - since_s > limit_s
        return f"it has not answered for {limit_s:g} s" if is_late else ""

    def _read_answer(self, response: Any) -> None:
        asked, ids = self._asked.pop(response.round, None), response.proposal.draft_token_ids
        if asked is None or len(ids) > asked.gamma:
            raise Nonsense(f"{len(ids)} tokens for round {response.round}, which did not ask for so many")
        self._add(asked.length, 0, ids)
        if not response.num_prepared:
            self.drafter.learn(time.monotonic() - asked.at_s, is_first=self._answered_length < 0)
        self._answered_length = asked.length

    def _read_announcement(self, announced: Any) -> None:
        ids, start = list(announced.token_ids), 0
        lengths = list(zip(announced.num_committed, announced.num_draft_tokens, strict=False))
        if sum(map(sum, lengths)) != len(ids) or len(lengths) > MAX_GAMMA:
            raise Nonsense("an announcement whose lengths do not fit")
        for committed, drafted in lengths:
            self._add(announced.position, committed, ids[start : start + committed + drafted])
            start += committed + drafted

    def _add(self, position: int, num_committed: int, ids: Sequence[int]) -> None:
        if max(ids, default=0) >= self._vocab_size:
            raise Nonsense(f"token id {max(ids)}, where the target has {self._vocab_size}")
        self.known.add(position, num_committed, ids)
