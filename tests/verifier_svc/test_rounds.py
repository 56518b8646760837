"""A session's rounds on the engine, one after the other."""

from pathlib import Path

from specgate.runtime.engine.engine import Engine
from specgate.runtime.engine.self_check import prepare
from specgate.service.model import ServedModel
from specgate.types import ALWAYS_SOLO, Proposal, SamplingParams, SessionSpec, Verdict, Verification, VerifyRequest
from tests.support.models import load_float32, quiet, write_llama
from verifier_svc.rounds import VerifyRounds
from verifier_svc.verifier import VerifySession


async def test_what_ended_one_solo_run_does_not_end_the_next_one(tmp_path: Path) -> None:
    loaded = load_float32(write_llama(tmp_path))
    engine = Engine(prepare(loaded, 512, 512, quiet))
    engine.start()
    model = ServedModel("verifier", loaded, engine, max_sessions=1)
    verdicts: list[Verdict] = []
    spec = SessionSpec((1, 2, 3), SamplingParams(), 7, Verification.SHARED_NOISE, 20, vocab_size=64)
    async with model.open(spec, VerifySession) as session:
        rounds = VerifyRounds(model, session, verdicts.append)
        for number, position in ((1, 3), (2, 7)):
            await rounds.begin(VerifyRequest(number, position, Proposal(), ALWAYS_SOLO, max_solo_tokens=3))
            await rounds.ended()
    engine.stop()
    assert [verdict.num_emitted for verdict in verdicts] == [1] * 8
