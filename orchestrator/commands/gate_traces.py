"""Traces of a comparison: recorded once the blocks are measured, kept in files, and replayed."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from orchestrator.auto.table import HEAD, row
from orchestrator.auto.trace import Trace, write_trace
from orchestrator.gate_bench.cases import Case, requests_of
from orchestrator.gate_bench.measure import Starter
from orchestrator.gate_bench.recorded import record_trace
from orchestrator.request import GenerationRequest
from specgate.errors import InvalidArgument


async def recorded(
    starter: Starter,
    case: Case,
    prompts: Sequence[GenerationRequest],
    num_texts: int,
    on_trace: Callable[[], None],
) -> Trace:
    """Return what the first blocks of a case with one client are answered with.

    Raises:
        SpecgateError: a request broke off.
    """
    one = await record_trace(starter, [requests_of(case, prompts, block)[0] for block in range(num_texts)])
    on_trace()
    return one


def replayed(folder: Path, traces: Mapping[str, Trace], clients: Sequence[int]) -> str:
    """Write each trace and ``replays.md``, and return what is in that: a row a trace and number of clients.

    A trace of fewer texts than clients has no row for them.

    Raises:
        InvalidArgument: a file cannot be written.
    """
    try:
        for name, one in traces.items():
            write_trace(folder / f"trace-{name.replace(', ', '-').replace(' ', '-')}.jsonl", one)
        rows = [
            row(name, one, sessions)
            for name, one in traces.items()
            for sessions in clients
            if sessions <= len(one.texts)
        ]
        table = "\n".join([HEAD, *rows]) + "\n"
        (folder / "replays.md").write_text(table, "utf-8")
    except OSError as error:
        raise InvalidArgument("out", f"{folder} cannot be written: {error.strerror}") from error
    return table
