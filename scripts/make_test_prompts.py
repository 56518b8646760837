#!/usr/bin/env python3
"""Write tests/data/held_out_prompts.json: beginnings of code from the modules held out of training."""

import json
import sysconfig
from pathlib import Path

from pair_corpus import HELD_OUT

NUM_PROMPTS = 50
NUM_LINES = 8
OUT = Path(__file__).resolve().parent.parent / "tests" / "data" / "held_out_prompts.json"


def snippets() -> list[str]:
    """Return windows of a few lines, each from the start of a definition."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for module in HELD_OUT:
        lines = (root / f"{module}.py").read_text(encoding="utf-8").splitlines(keepends=True)
        starts = [i for i, line in enumerate(lines) if line.lstrip().startswith(("def ", "class "))]
        found += ["".join(lines[i : i + NUM_LINES]) for i in starts]
    return found


def main() -> None:
    found = snippets()
    step = len(found) / NUM_PROMPTS
    prompts = [found[int(i * step)] for i in range(NUM_PROMPTS)]
    OUT.write_text(json.dumps(prompts, indent=1) + "\n")


if __name__ == "__main__":
    main()
