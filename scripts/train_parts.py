"""What each part of a draft brings: trains one draft as it is and others with one part left out, on the same texts.

    python scripts/train_parts.py --target PATH --texts FOLDER --work FOLDER --steps 200 --json FILE

The texts are those of a ``train-draft`` that has not published its draft yet, in its folder ``training``.
"""

import argparse
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console

from specgate_lab.progress import StageBars
from specgate_lab.report import ResultsFile
from specgate_lab.train import run, training
from specgate_lab.train.forms import measured_costs
from specgate_lab.train.recipe import Recipe

PLAIN_LOSS = "loss without the first choice"
LAYERS = 3
"""Of the draft as it is: what two cores choose for SmolLM2-135M."""
SHOWN = ("parameters", "share_of_forward", "greedy_agreement", "acceptance_at_temperature_1", "gain")


def distribution_alone(logits: torch.Tensor, places: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy with the target's distribution alone."""
    return -(probs * logits.log_softmax(-1).gather(-1, places)).sum(-1).mean()


VARIANTS: dict[str, dict[str, int]] = {
    "as it is": {},
    "the whole head": {"head_tokens": 0},
    "1 layer": {"layers": 1},
    "6 layers": {"layers": 6},
    PLAIN_LOSS: {},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name in ("texts", "work", "json"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    file = ResultsFile(options.json)
    num_rows = 256 * len(texts := sorted(options.texts.glob("texts-*.safetensors")))
    base = Recipe(options.target, layers=LAYERS, rows=num_rows, steps=options.steps)
    log, rows = Console(stderr=True), []
    for number, (name, changes) in enumerate(VARIANTS.items()):
        out = options.work / str(number)
        log.rule(name)
        loss = distribution_alone if name == PLAIN_LOSS else training.distillation_loss
        with patch.object(training, "distillation_loss", loss), StageBars(log) as bars:
            report = run.make_draft(
                replace(base, **changes), out, [], "cpu", partial(with_texts, texts, out, log), bars.show, log.print
            )
        rows.append({"part": name, **{one: report[one] for one in SHOWN}})
    file.write({"steps": options.steps, "ablations": rows})


def with_texts(texts: list[Path], out: Path, log: Console, target: str, drafts: Any) -> Any:
    """Measure forwards of drafts, and lay the texts down where the run looks for them next."""
    costs = measured_costs("cpu", log)(target, drafts)
    for text in texts:
        os.link(text, out / run.WORK / text.name)
    return costs


if __name__ == "__main__":
    main()
