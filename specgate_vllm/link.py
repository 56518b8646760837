"""The thread that owns all connections: an event loop with one stream for each session. vLLM never waits for it."""

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import grpc

from specgate_vllm.drafter import Drafter
from specgate_vllm.report import Report
from specgate_vllm.rows import Rows
from specgate_vllm.session import Session
from specgate_vllm.v1 import drafter_service_pb2 as pb

SWEEP_S, HALTED_S = 0.1, 0.5
IDLE_S = 5.0
"""After so long without a step all sessions are closed."""
Code = grpc.StatusCode
NO_FIT = (Code.FAILED_PRECONDITION, Code.UNIMPLEMENTED, Code.PERMISSION_DENIED)
_log = logging.getLogger(__name__)


class Link:
    """The streams of all sessions. ``board`` guards them, and is notified of what arrives."""

    def __init__(self, board: threading.Condition, rows: Rows, report: Report) -> None:
        self._board, self._rows, self._report = board, rows, report
        self.stepped_at_s = time.monotonic()
        self._loop = asyncio.new_event_loop()
        self._sweeping = self._loop.create_task(self._sweep())
        self._thread = threading.Thread(target=self._run, name="specgate", daemon=True)
        self._thread.start()

    def start(self, opened: Sequence[Session], rounds: Sequence[tuple[Session, pb.DraftRound]]) -> None:
        """Open sessions and send rounds. Called from any thread; returns at once."""
        self._loop.call_soon_threadsafe(self._start, opened, rounds)

    def close(self) -> None:
        """Cancel all streams and end the thread. Safe to call twice."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._sweeping.cancel)
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._sweeping)
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        # gRPC may still tell of cancelled calls.
        self._loop.run_until_complete(asyncio.sleep(SWEEP_S / 2))
        self._loop.close()

    def _start(self, opened: Sequence[Session], rounds: Sequence[tuple[Session, pb.DraftRound]]) -> None:
        for session in opened:
            session.task = self._loop.create_task(self._talk(session))
            session.task.add_done_callback(partial(self._left, session.drafter))
        for session, message in rounds:
            session.outbox.put_nowait(pb.DraftRequest(round=message))

    def _left(self, drafter: Drafter, _: object) -> None:
        """Count a session out, also one that was cancelled before it began."""
        with self._board:
            drafter.num_sessions -= 1

    async def _talk(self, session: Session) -> None:
        """Read a session's stream to its end. Whatever comes of it costs drafts and nothing else."""
        tasks: list[Any] = []
        code: grpc.StatusCode | None = None
        why = "it ended a session"
        try:
            call = session.drafter.stub().Draft()
            tasks = [call, self._loop.create_task(_write(call, session))]
            while (response := await call.read()) is not grpc.aio.EOF:
                with self._board:
                    session.read(response)
                    self._board.notify_all()
        except asyncio.CancelledError:
            why = ""
        except grpc.aio.AioRpcError as error:
            code, why = error.code(), error.details() or error.code().name
        except Exception as error:
            why = str(error) or repr(error)
        for one in tasks:
            one.cancel()
        with self._board:
            self._ended(session, code, why)
            self._board.notify_all()

    def _ended(self, session: Session, code: grpc.StatusCode | None, why: str) -> None:
        """Draw the conclusions for a drafter of a stream's end; no ``why``: we closed it."""
        self._report.counts[f"sessions_{code.name.lower() if code else 'lost' if why else 'closed'}"] += 1
        if code is Code.INVALID_ARGUMENT:
            # Too long for the draft model, say: another session of the same request would fare alike.
            session.is_refused = True
            return
        session.is_closed = True
        self._rows.sessions.pop(session, None)
        if code is Code.RESOURCE_EXHAUSTED:
            session.drafter.full()
        elif why:
            session.drafter.lost(why, fits=session.is_opened or code not in NO_FIT)

    async def _sweep(self) -> None:
        """Close what is over, again and again, and give up drafters that say nothing."""
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(SWEEP_S)
            # Where this process was halted, answers wait to be read.
            was_halted = time.monotonic() - began_s > HALTED_S
            try:
                with self._board:
                    self._sweep_once(may_judge=not was_halted)
                self._report.write()
            except Exception:
                _log.exception("specgate_vllm could not look after its sessions")

    def _sweep_once(self, *, may_judge: bool) -> None:
        is_idle = time.monotonic() - self.stepped_at_s > IDLE_S
        for session in list(self._rows.sessions):
            if why := session.silence() if may_judge else "":
                session.drafter.lost(why)
            if why or is_idle or session.is_gone:
                session.is_closed = True
                del self._rows.sessions[session]
                if session.task is not None:
                    session.task.cancel()


async def _write(call: Any, session: Session) -> None:
    """Send what is queued until the stream ends; reading it tells why it did."""
    with suppress(Exception):
        while True:
            await call.write(await session.outbox.get())
