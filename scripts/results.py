#!/usr/bin/env python3
"""Write docs/results/README.md: a table for every results file there. A test keeps it up to date."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "results"
HEAD = """# Results

Made by `scripts/results_table.py` from the JSON files beside it; each says where its numbers come from. To add one:
`orchestrator bench --json docs/results/NAME.json`, then run the script. What the rows and columns are:
[bench.md](../bench.md), [load.md](../load.md), [gpu-day.md](../gpu-day.md), [chaos.md](../chaos.md),
[clients.md](../clients.md).
"""
COLUMNS = {
    "name": "row",
    "version": "version",
    "before": "before",
    "ran": "what ran",
    "concurrency": "at a time",
    "rate": "requests/s",
    "speculation": "speculation",
    "added_delay_ms": "added ms",
    "tokens_per_s": "tokens/s",
    "ratio_to_hf": "× hf",
    "ratio_to_target": "× target",
    "ratio_to_target_95": "95 %",
    "acceptance_rate": "accepted",
    "tokens_per_forward": "tok/forward",
    "run_ahead_hit_rate": "ahead",
    "cases": "cases",
    "done": "done as asked",
    "http_5xx": "5xx",
    "internal": "INTERNAL, UNKNOWN",
    "hangs": "hangs",
    "crashes": "crashes",
    "held": "held",
    "seen": "what is seen",
    "gap_s": "longest gap, s",
    "text_equal": "text equal",
    "minutes": "minutes",
    "answers": "whole answers",
    "clients_left": "clients left",
    "tokens": "tokens",
    "num_differing": "texts differing",
    "near_tie_texts": "met a near tie",
    "num_failed": "refused or failed",
    "kills": "kills",
    "still_held": "still held",
    "grown_mb": "memory grown, MB",
    "status": "",
    "seconds": "s",
    "told": "",
}
"""Fields of a row that are shown, in this order, where a file's rows have them."""
SHARES = frozenset({"acceptance_rate", "run_ahead_hit_rate"})


def page(folder: Path) -> str:
    """Return the page that stands for all results files of ``folder``, the newest first."""
    files = {file: json.loads(file.read_text("utf-8")) for file in sorted(folder.glob("*.json"))}
    newest_first = sorted(files, key=lambda file: files[file]["provenance"]["date"], reverse=True)
    return "\n".join([HEAD, *(line for file in newest_first for line in _section(file, files[file]))])


def _section(file: Path, told: Mapping[str, Any]) -> Iterator[str]:
    origin = told["provenance"]
    machine = origin["machine"]
    where = ", ".join([f"{machine['cores']} cores of {machine['cpu']}", *machine["gpus"]])
    versions = ", ".join(f"{name} {origin['versions'][name]}" for name in ("torch", "transformers"))
    yield f"## [{file.stem}]({file.name})\n"
    yield f"    {origin['command']}\n"
    yield f"{origin['date'][:10]}, commit {origin['commit'] or told.get('note') or 'unknown'}, {where}, {versions}.\n"
    for line in told.get("advice", []):
        yield f"> {line}\n"
    yield from _table(told.get("rows") or told.get("steps") or _tuned(told))
    for step in told.get("steps", []):
        if step["rows"]:
            yield f"### {step['name']}\n"
            yield from _table(step["rows"], all_columns=True)


def _tuned(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what ``tune`` and ``tune layers`` ran for real."""
    sets = [*told.get("finalists", []), *([told["at_random"]["run"]] if "at_random" in told else [])]
    runs = [{**one[run], "name": f"{len(one['attention'])} attention, {len(one['mlp'])} MLP, {one[run]['name']}"}
            for one in sets for run in ("run", "run_auto")]  # fmt: skip
    return [*told.get("finals", []), *runs]


def _table(rows: list[dict[str, Any]], *, all_columns: bool = False) -> Iterator[str]:
    """Yield a table, or nothing of no rows. ``all_columns`` shows what ``COLUMNS`` does not know, too."""
    if not rows:
        return
    named = dict.fromkeys(column for row in rows for column in row) if all_columns else COLUMNS
    shown = [column for column in named if any(row.get(column) is not None for row in rows)]
    yield f"| {' | '.join(COLUMNS.get(column, column) for column in shown)} |"
    yield f"|{'---|' * len(shown)}"
    for row in rows:
        yield f"| {' | '.join(_cell(column, row.get(column)) for column in shown)} |"
    yield ""


def _cell(column: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(one, float) for one in value):
        return " to ".join(f"{one:.2f}" for one in value)
    if column in SHARES:
        return f"{value:.0%}"
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 100 else f"{value:.2f}"
    return str(value).replace("|", "\\|")


if __name__ == "__main__":
    (FOLDER / "README.md").write_text(page(FOLDER), "utf-8")
