"""Traces of a comparison: recorded once the blocks are measured, kept in files as they come, and replayed."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from specgate.errors import InvalidArgument
from specgate.types import Verification
from specgate_lab.gates.cases import Case, DraftKind, requests_of
from specgate_lab.gates.measure import Starter
from specgate_lab.gates.recorded import record_trace
from specgate_lab.replay.report import HEAD, row
from specgate_lab.replay.trace import RoundTrace, write_trace
from specgate_lab.report import counting_bar


async def recorded(
    folder: Path,
    starters: Mapping[DraftKind, Starter],
    cases: Sequence[Case],
    prompts: Sequence[GenerationRequest],
    num_texts: int,
    log: Console,
) -> dict[str, RoundTrace]:
    """Record what the first blocks of each case, which has one client, are answered with; return traces by name.

    A case none of whose texts is the same in two runs is told of and left out.

    Raises:
        SpecgateError: a request broke off, or a file cannot be written; the traces before it are in the folder.
    """
    traces: dict[str, RoundTrace] = {}
    with counting_bar(log, "recording", len(cases)) as on_trace:
        for case in cases:
            requests = [requests_of(case, prompts, block)[0] for block in range(num_texts)]
            mode = f", {Verification.REJECTION}" if requests[0].rejects else ""
            name = f"{case.draft} draft, temperature {case.temperature:g}{mode}"
            found = await record_trace(starters[case.draft], requests)
            if found is None:
                log.print(f"{name}: none of {num_texts} texts is the same in two runs", style="yellow", soft_wrap=True)
            else:
                traces[name] = found
                _write(folder, name, found)
            on_trace()
    return traces


def _write(folder: Path, name: str, one: RoundTrace) -> None:
    path = folder / f"trace-{name.replace(', ', '-').replace(' ', '-')}.jsonl"
    try:
        write_trace(path, one)
    except OSError as error:
        raise InvalidArgument("out", f"{path} cannot be written: {error.strerror}") from error


def replayed(folder: Path, traces: Mapping[str, RoundTrace], clients: Sequence[int]) -> str:
    """Write ``replays.md``, and return what is in it: a row a trace and number of clients.

    A trace of fewer texts than clients has no row for them.

    Raises:
        InvalidArgument: the file cannot be written.
    """
    try:
        rows = [
            row(name, one, sessions)
            for name, one in traces.items()
            for sessions in clients
            if sessions <= len(one.texts)
        ]
        table = "\n".join([HEAD, *map(str, rows)]) + "\n"
        (folder / "replays.md").write_text(table, "utf-8")
    except OSError as error:
        raise InvalidArgument("out", f"{folder} cannot be written: {error.strerror}") from error
    return table
