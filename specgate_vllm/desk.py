"""What happens in a step: sessions for the rows of vLLM's batch, and drafts for the next step."""

import threading
import time
from collections.abc import Sequence
from typing import Any

from specgate_vllm.drafter import Drafter, pick
from specgate_vllm.hook import Engine
from specgate_vllm.link import Link
from specgate_vllm.report import Report
from specgate_vllm.rows import Line, Row, Rows
from specgate_vllm.session import MAX_GAMMA, Session
from specgate_vllm.settings import read_settings
from specgate_vllm.tokenizer import fingerprint
from specgate_vllm.v1 import types_pb2
from specgate_vllm.worth import Acceptance, Planner


class Desk:
    """One engine's sessions. ``step`` is called by vLLM's thread alone."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._settings = engine, read_settings(engine.settings)
        self._board, self._rows, self.report = threading.Condition(), Rows(), Report(self._settings.stats)
        self._drafters = [Drafter(endpoint, self._settings) for endpoint in self._settings.drafters]
        self._gamma = min(engine.gamma, MAX_GAMMA)
        self._planner, self._acceptance = Planner(self._gamma), Acceptance()
        self._width, self._began_s, self._ended_s = 0, 0.0, 0.0
        self._digests = fingerprint(engine.tokenizer)
        self._link = Link(self._board, self._rows, self.report)
        self.close = self._link.close

    def step(self, sampled: Sequence[Sequence[int]], lengths: Any, token_ids: Any) -> list[list[int]]:
        """Follow the rows, and return their drafts."""
        start_s = self._link.stepped_at_s = time.monotonic()
        rows = [Row(token_ids[i], int(lengths[i]), len(new)) for i, new in enumerate(sampled)]
        with self._board:
            lines = [Line(*both) for both in zip(rows, self._rows.match(rows), strict=True)]
            is_decoding = all(row.num_new for row in rows) and any(one.drafting for one in lines)
            if self._width and is_decoding:
                # No prompts ran, and there was no pause.
                self._learn(start_s, rows)
            opened = [session for one in lines if (session := self._followed(one)) is not None]
            self._rows.remember([one.session for one in lines], start_s)
            self._plan(lines)
            asking = [(session, one.gamma) for one in lines if (session := one.drafting)]
            rounds = [(one, message) for one, g in asking if (message := one.ask(g, self._settings.stop_below))]
            if opened or rounds:
                self._link.start(opened, rounds)
            for one in lines:
                one.look()
            is_miss = any(one.awaited for one in lines)
            if is_miss:
                self._wait(start_s, lines)
        for one in lines:
            if one.session is not None:
                one.session.num_drafted = len(one.draft)
        num_drafted = sum(len(one.draft) for one in lines)
        self._width, self._began_s, self._ended_s = len(lines) + num_drafted, start_s, time.monotonic()
        self.report.step("miss" if is_miss else "hit" if num_drafted else "none", self._ended_s - start_s)
        return [one.draft for one in lines]

    def _learn(self, now_s: float, rows: Sequence[Row]) -> None:
        """Count the step that ended: what its forward took, and what all of it brought."""
        self._planner.times.learn(self._width, now_s - self._ended_s)
        num_tokens, alone_s = sum(row.num_new for row in rows), self._planner.times.of(len(rows))
        self._planner.turns(len(rows)).step(num_tokens, len(rows), now_s - self._began_s, alone_s)

    def _followed(self, line: Line) -> Session | None:
        """Commit the row's new tokens; where it has no session, return one that is to be opened."""
        row, session = line.row, line.session
        if session is not None:
            if row.num_new:
                session.acceptance.learn(session.num_drafted, row.num_new - 1)
            session.commit(*row.span(session.length, row.length))
        elif (drafter := pick(self._drafters)) is not None:
            line.session = self._opened(row, drafter)
            drafter.num_sessions += 1
            self._rows.sessions[line.session] = None
            self.report.counts["sessions"] += 1
            return line.session
        return None

    def _opened(self, row: Row, drafter: Drafter) -> Session:
        tokens, ids = row.span(0, row.length)
        opening = types_pb2.SessionSpec(
            prompt_token_ids=ids,
            max_tokens=max(self._engine.max_length - row.length, 0) + 1,
            # Certain drafts: the draft model's best choice, whatever the request samples with.
            sampling=types_pb2.SamplingParams(temperature=0.0),
            verification=types_pb2.VERIFICATION_SHARED_NOISE,
            vocab_size=self._engine.vocab_size,
            tokenizer_fingerprint=self._digests,
            cache_salt=self._settings.cache_salt,
        )
        return Session(tokens, opening, drafter, self._acceptance, self._engine.vocab_size)

    def _plan(self, lines: Sequence[Line]) -> None:
        drafting = [(one, session) for one in lines if (session := one.drafting)]
        gammas = [self._gamma] * len(drafting)
        if self._settings.gate == "auto":
            rates = [session.acceptance.rate for _, session in drafting]
            gammas = self._planner.plan(rates, len(lines) - len(rates))
        for (one, _), gamma in zip(drafting, gammas, strict=True):
            one.gamma = max(min(gamma, self._engine.max_length - one.row.length - 1), 0)

    def _wait(self, start_s: float, lines: Sequence[Line]) -> None:
        """Wait for drafts that are not there, as long as that pays; take what comes."""
        num_answers = {one: one.num_answers for one in self._drafters}
        while True:
            limit_s, awaited = self._patience(lines)
            left_s = start_s + limit_s - time.monotonic()
            if not awaited or left_s <= 0 or not self._board.wait(left_s):
                break
            for one in lines:
                one.look()
        for session in awaited:
            session.drafter.is_silent |= session.drafter.num_answers == num_answers[session.drafter]
        self.report.counts["rows_late"] += sum(one.awaited is not None for one in lines)

    def _patience(self, lines: Sequence[Line]) -> tuple[float, list[Session]]:
        """Return how many seconds of the step may go by, and for whom.

        Who is expected too late is not waited for; with each that is left out, less is gained.
        """
        tokens = sum(1 + self._acceptance.tokens(len(one.draft)) for one in lines)
        width = sum(1 + len(one.draft) for one in lines)
        late = [(one, session) for one in lines if (session := one.awaited)]
        late.sort(key=lambda both: both[1].expected_s)
        while late:
            gains = [s.acceptance.tokens(one.gamma) - s.acceptance.tokens(len(one.draft)) for one, s in late]
            more_width = sum(one.gamma - len(one.draft) for one, _ in late)
            worth_s = self._planner.wait_s(tokens, width, sum(gains), more_width)
            limit_s = min(worth_s, self._settings.wait_ms / 1000)
            if late[-1][1].expected_s <= limit_s:
                return limit_s, [session for _, session in late]
            late.pop()
        return 0.0, []
