"""Predict what a draft of 4 layers brings on a card, from measured forwards: writes docs/results/predicted-gains.json.

The pair has the shapes of SmolLM2-1.7B, whole, and of a draft of 4 layers. ``train-draft`` predicts in the same way.
"""

import json
from itertools import dropwhile
from pathlib import Path
from typing import Any

from orchestrator.policy.auto.costs import MeasuredCosts
from specgate.types import ForwardCost
from specgate_lab.report import ResultsFile
from specgate_lab.train.gain import Gain, tokens_at

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "results"
LAYERS = 4
AGREEMENTS = (0.4, 0.5, 0.6, 0.7, 0.8)


def rows_of(day: str, step: str) -> list[dict[str, Any]]:
    """Return what one step of a GPU day measured."""
    steps = json.loads((FOLDER / f"{day}.json").read_text("utf-8"))["steps"]
    return [row for one in steps if one["name"] == step for row in one["rows"]]


def costs() -> MeasuredCosts:
    """Return the forwards of the target, by rows, and a token of the draft."""
    (own,) = (row for row in rows_of("h200", "target") if row.get("setting") == "own")
    target = [ForwardCost(num, own[f"rows_{num}_us"]) for num in (1, 6, 16)]
    thin = dropwhile(lambda row: row.get("layers") != LAYERS, rows_of("h200-kernels", "draft"))
    token_us = next(row["us_a_token"] for row in thin if "us_a_token" in row)
    return MeasuredCosts(target, [ForwardCost(1, round(token_us))])


def main() -> None:
    """Write a row for each agreement."""
    file, measured = ResultsFile(FOLDER / "predicted-gains.json"), costs()
    rows = []
    for agreement in AGREEMENTS:
        gain = Gain.of(measured, tokens_at(agreement))
        rows.append({"agreement": agreement, "gamma": gain.gamma, "ratio_to_target": round(gain.ratio, 3)})
    file.write({"layers": LAYERS, "forward_us": measured._asdict(), "rows": rows})


if __name__ == "__main__":
    main()
