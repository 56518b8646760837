"""The class that vLLM calls after each step: sessions for the rows of its batch, and drafts for the next step."""

import atexit
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specgate_vllm import hook
from specgate_vllm.drafter import Drafter, pick
from specgate_vllm.link import Link
from specgate_vllm.report import Report
from specgate_vllm.rows import Row, Rows
from specgate_vllm.session import MAX_GAMMA, Session
from specgate_vllm.settings import read_settings
from specgate_vllm.tokenizer import fingerprint
from specgate_vllm.v1 import types_pb2
from specgate_vllm.worth import Acceptance, Planner

ERROR_EVERY_S = 60.0
_log = logging.getLogger(__name__)


class Proposer:
    """vLLM's ``custom_class``. Raises UnsupportedVllm and InvalidSetting: with them nothing would be drafted."""

    def __init__(self, vllm_config: Any) -> None:
        engine = hook.engine_of(vllm_config)
        # The other ranks' drafts are not read: they open no channel.
        self.desk = Desk(engine) if engine.is_output_rank else None
        self._logged_at_s = float("-inf")

    def load_model(self, *_: Any, **__: Any) -> None:
        """Do nothing; vLLM's runner on CPUs calls it."""

    def propose(self, sampled_token_ids: Any, num_tokens_no_spec: Any, token_ids_cpu: Any, **_: Any) -> list[list[int]]:
        """Return the draft of each row; empty: none. It never raises."""
        try:
            if self.desk is not None:
                return self.desk.step(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        except Exception:
            # An exception that leaves ends the engine.
            if time.monotonic() - self._logged_at_s > ERROR_EVERY_S:
                self._logged_at_s = time.monotonic()
                _log.exception("no drafts in this step, because specgate_vllm failed")
        return [[] for _ in sampled_token_ids]


class Line:
    """What a row is in a step: its session, γ, and the draft."""

    def __init__(self, row: Row, session: Session | None) -> None:
        self.row, self.session = row, session
        self.gamma, self.draft = 0, list[int]()

    @property
    def can_draft(self) -> bool:
        return self.session is not None and self.row.num_new > 0 and not self.session.is_refused

    @property
    def is_awaited(self) -> bool:
        """Whether its draft is shorter than planned and may still grow."""
        return self.session is not None and len(self.draft) < self.gamma and not self.session.is_ready

    def look(self) -> None:
        """Take what is known by now."""
        if self.session is not None and self.gamma:
            self.draft = self.session.known.next(self.gamma)


class Desk:
    """What happens in a step."""

    def __init__(self, engine: hook.Engine) -> None:
        self._engine, self._settings = engine, read_settings(engine.settings)
        self._board, self._rows, self.report = threading.Condition(), Rows(), Report()
        self._drafters = [Drafter(endpoint, self._settings) for endpoint in self._settings.drafters]
        self._gamma = min(engine.gamma, MAX_GAMMA)
        self._planner, self._acceptance = Planner(self._gamma), Acceptance()
        self._width = self._num_drafted = 0
        self._ended_s = 0.0
        opening = types_pb2.SessionSpec(
            # Certain drafts: the draft model's best choice, whatever the request samples with.
            sampling=types_pb2.SamplingParams(temperature=0.0),
            verification=types_pb2.VERIFICATION_SHARED_NOISE,
            vocab_size=engine.vocab_size,
            tokenizer_fingerprint=fingerprint(engine.tokenizer),
            cache_salt=self._settings.cache_salt,
        )
        stats = Path(self._settings.stats) if self._settings.stats else None
        self._link = Link(self._board, self._rows, self.report, opening, engine.max_length, self._drafters, stats)
        self.close = self._link.close
        atexit.register(self.close)
        if (found := hook.installed_version()) and found not in hook.TRIED:
            _log.warning("specgate_vllm was tried with vLLM %s; this is %s", ", ".join(hook.TRIED), found)

    def step(self, sampled: Sequence[Sequence[int]], lengths: Any, token_ids: Any) -> list[list[int]]:
        """Follow the rows, and return their drafts."""
        start_s = self._link.stepped_at_s = time.monotonic()
        rows = [Row(token_ids[i], int(lengths[i]), len(new)) for i, new in enumerate(sampled)]
        with self._board:
            lines = [Line(*both) for both in zip(rows, self._rows.match(rows), strict=True)]
            if self._width and all(one.can_draft for one in lines):
                # Nothing but decoding ran: no prompts, and no pause.
                self._planner.times.learn(self._width, start_s - self._ended_s)
            opened = [session for one in lines if (session := self._followed(one)) is not None]
            self._rows.remember([one.session for one in lines], start_s)
            self._plan(lines)
            rounds = [(s, message) for one in lines if (s := one.session) and (message := self._asked(one))]
            self._link.start(opened, rounds)
            for one in lines:
                one.look()
            is_miss = any(one.is_awaited for one in lines)
            if is_miss:
                self._wait(start_s, lines)
        for one in lines:
            if one.session is not None:
                one.session.num_drafted = len(one.draft)
        self._num_drafted = sum(len(one.draft) for one in lines)
        self._width, self._ended_s = len(lines) + self._num_drafted, time.monotonic()
        self.report.step("miss" if is_miss else "hit" if self._num_drafted else "none", self._ended_s - start_s)
        return [one.draft for one in lines]

    def _followed(self, line: Line) -> Session | None:
        """Commit the row's new tokens; where it has no session, return one that is to be opened."""
        row, session = line.row, line.session
        if session is not None:
            if row.num_new:
                session.acceptance.learn(session.num_drafted, row.num_new - 1)
            session.commit(*row.span(session.length, row.length))
        elif (drafter := pick(self._drafters)) is not None:
            line.session = Session(*row.span(0, row.length), drafter, self._acceptance, self._engine.vocab_size)
            drafter.num_sessions += 1
            self._rows.sessions[line.session] = None
            self.report.counts["sessions"] += 1
            return line.session
        return None

    def _plan(self, lines: Sequence[Line]) -> None:
        """Set γ of each row; it stays 0 within a prompt and without a session."""
        drafting = [one for one in lines if one.can_draft]
        rates = [one.session.acceptance.rate for one in drafting if one.session is not None]
        gammas = [self._gamma] * len(rates)
        if self._settings.gate == "auto":
            gammas = self._planner.plan(rates, len(lines) - len(rates), self._num_drafted)
        for one, gamma in zip(drafting, gammas, strict=True):
            one.gamma = max(min(gamma, self._engine.max_length - one.row.length - 1), 0)

    def _asked(self, line: Line) -> Any:
        session = line.session
        return session.ask(line.gamma, self._settings.stop_below) if session is not None and line.row.num_new else None

    def _wait(self, start_s: float, lines: Sequence[Line]) -> None:
        """Wait for drafts that are not there, as long as that pays; take what comes."""
        num_answers = {one: one.num_answers for one in self._drafters}
        awaited = list[Session]()
        while True:
            left_s, awaited = self._patience(lines)
            left_s += start_s - time.monotonic()
            if not awaited or left_s <= 0 or not self._board.wait(left_s):
                break
            for one in lines:
                one.look()
        for session in awaited:
            session.drafter.is_silent |= session.drafter.num_answers == num_answers[session.drafter]
        self.report.counts["rows_late"] += sum(one.is_awaited for one in lines)

    def _patience(self, lines: Sequence[Line]) -> tuple[float, list[Session]]:
        """Return how many seconds of the step may go by, and whom that is for.

        Who is expected too late is not waited for; with each that is left out, less is gained.
        """
        tokens = sum(1 + self._acceptance.tokens(len(one.draft)) for one in lines)
        width = sum(1 + len(one.draft) for one in lines)
        waiting = sorted((s.expected_s, i) for i, one in enumerate(lines) if (s := one.session) and one.is_awaited)
        while waiting:
            late = [lines[i] for _, i in waiting]
            more_tokens = sum(_gain(one) for one in late)
            more_width = sum(one.gamma - len(one.draft) for one in late)
            limit_s = min(self._planner.wait_s(tokens, width, more_tokens, more_width), self._settings.wait_ms / 1000)
            if waiting[-1][0] <= limit_s:
                return limit_s, [one.session for one in late if one.session is not None]
            waiting.pop()
        return 0.0, []


def _gain(line: Line) -> float:
    """Return how many more tokens are accepted on average where the rest of a draft comes."""
    if line.session is None:
        return 0.0
    acceptance = line.session.acceptance
    return acceptance.tokens(line.gamma) - acceptance.tokens(len(line.draft))
