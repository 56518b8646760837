"""What services say of themselves is told, and who says nothing is told too."""

from orchestrator.services.status import Load, SystemStatus, ask_endpoints
from tests.support.fake_services import serving, unused_endpoint


async def test_services_that_answer_and_one_that_does_not() -> None:
    nowhere = unused_endpoint()
    busy = {"max_sessions": 8, "active_sessions": 3, "kv_tokens": 4096, "free_kv_tokens": 96, "uptime_s": 7}
    async with serving("verifier", **busy) as verifier, serving("drafter") as drafter:
        known, lost, other = await ask_endpoints("verifier", (verifier.endpoint, nowhere, drafter.endpoint), None)
    assert (known.role, known.endpoints, known.state, known.error) == ("verifier", (verifier.endpoint,), "SERVING", "")
    assert (known.sessions, known.kv_tokens, known.uptime_s) == (Load(3, 8), Load(4000, 4096), 7)
    assert (lost.name, lost.state, lost.sessions) == (nowhere, "UNKNOWN", None)
    assert lost.error
    assert other.error.endswith("is not a verifier")
    assert SystemStatus((lost, known)).answers
    assert not SystemStatus((lost, other)).answers
