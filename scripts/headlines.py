"""Measure what we tell of a CPU anew: ``scripts/headlines [NAME...]``, without names all of it.

Each command runs three times and writes docs/results/NAME.json: the run whose last row is the median one, and in each
of its rows the ratio of all three. Run it on a commit, on a machine that does nothing else, and then scripts/results.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.progress import track

from specgate_lab.provenance import sealed
from specgate_lab.report import write_json

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "results"
UNFINISHED = ROOT / "build" / "headlines"
"""Where one run is not yet the median of three."""
RUNS = 3
RATIOS = ("ratio_to_target", "ratio_to_off")
_CODE = ("--prompts", "docs/results/held-out-code.jsonl", "--repeats", "1")
_CHATS = ("--prompts", "docs/results/held-out-chats.jsonl", "--repeats", "1")
_COPIES = ("--prompts", "docs/results/held-out-copies.jsonl", "--repeats", "1")
_SMOLLM2 = ["--target", "~/.cache/specgate/real_models/smollm2-135m-instruct", "--max-tokens", "64"]
HEADLINES: Mapping[str, Sequence[str]] = {
    "bundled-greedy": ("--assisted", *_CODE),
    "bundled-temperature-1": ("--temperature", "1", "--seed", "7", *_CODE),
    "bundled-load": ("--concurrency", "1,8", *_CODE),
    "smollm2-135m": (*_SMOLLM2, "--draft", f"{_SMOLLM2[1]}-draft", "--assisted", *_CHATS),
    "smollm2-135m-temperature-1": (
        *(*_SMOLLM2, "--draft", f"{_SMOLLM2[1]}-draft", *_CHATS),
        *("--temperature", "1", "--seed", "7"),
    ),
    "smollm2-135m-24-layers": (*_SMOLLM2, "--draft", f"{_SMOLLM2[1]}-24-layers", *_CHATS),
    "sources-bundled-code": ("--sources", "model,suffix", *_CODE),
    "sources-smollm2-135m-chats": (*_SMOLLM2, "--sources", "suffix", *_CHATS),
    "sources-smollm2-135m-copies": (*_SMOLLM2, "--sources", "suffix", *_COPIES),
}
"""What ``orchestrator bench --pin`` is given: texts on which nothing is tuned, and default settings. SmolLM2's draft is
made by ``orchestrator train-draft``, as docs/results/train-smollm2-135m.json says."""


def measured(name: str) -> dict[str, Any]:
    """Run one command once and return its results."""
    path = UNFINISHED / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    own = [str(Path(one).expanduser()) if one.startswith("~") else one for one in HEADLINES[name]]
    command = [
        str(Path(sys.executable).with_name("orchestrator")),
        "bench",
        "--pin",
        *own,
        "--json",
        str(path.relative_to(ROOT)),
    ]
    subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)
    return dict(json.loads(path.read_text("utf-8")))


def median_run(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the run whose last row is the median one, with the ratios of all runs in its rows, least first."""
    middle = sorted(runs, key=lambda run: _ratios(run["rows"][-1])[0][1])[len(runs) // 2]
    rows = []
    for number, row in enumerate(middle["rows"]):
        found = [name for name, _ in _ratios(row)]
        rows.append(row | {f"{name}_runs": sorted(run["rows"][number][name] for run in runs) for name in found})
    return sealed({**middle, "rows": rows})


def _ratios(row: Mapping[str, Any]) -> list[tuple[str, float]]:
    return [(name, row[name]) for name in RATIOS if row.get(name) is not None]


def main(names: Sequence[str]) -> None:
    """Measure each headline, and write its file."""
    for name in names:
        runs = [measured(name) for _ in track(range(RUNS), description=name)]
        write_json(FOLDER / f"{name}.json", median_run(runs))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(HEADLINES)}; all by default")
    chosen = parser.parse_args().names or list(HEADLINES)
    if unknown := set(chosen) - HEADLINES.keys():
        parser.error(f"no headline: {', '.join(unknown)}")
    main(chosen)
