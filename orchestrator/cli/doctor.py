"""``orchestrator doctor``: whether a pair can be served, and if not, the reason and the remedy."""

import asyncio
import json as json_format
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.api.settings.settings import load_settings
from orchestrator.cli.exposure import exposure
from orchestrator.cli.findings import Finding, FindingsReport, Status
from orchestrator.cli.machine import check_library, check_machine, check_memory, look_around
from orchestrator.cli.model_checks import (
    check_architecture,
    check_end,
    check_files,
    check_pair,
    check_tokenizer,
)
from orchestrator.cli.model_facts import ModelFacts, read_config
from orchestrator.cli.serve_options import CONFIG
from orchestrator.cli.service_checks import ask_services
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.option_groups import takes_groups
from orchestrator.terminal.render import output_console
from specgate.errors import ModelLoadError


@takes_groups
def doctor(
    models: ModelOptions,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve",
            help="List the addresses that the served system listens on, and which are open to other machines.",
        ),
    ] = False,
    config: Annotated[Path | None, CONFIG] = None,
) -> None:
    """Check a pair of models, running services, or the open addresses of `serve`; explain each problem."""
    report = FindingsReport([*(exposure(load_settings(config)) if serve else _examine(models))])
    if json:
        print(json_format.dumps(report.to_object(), indent=2))
    else:
        report.print(output_console())
    if not report.healthy:
        raise typer.Exit(1)


def _examine(models: ModelOptions) -> Iterator[Finding]:
    """Look at each side where it is, then at the two together, then at the machine."""
    target, draft = _Side("target"), _Side("draft")
    yield from target.examine(models, "verifier", models.verifier, models.target_model)
    yield from draft.examine(models, "drafter", models.drafter, models.draft_model)
    # What has no model fits any.
    if target.facts and draft.facts and draft.facts.num_parameters != 0:
        translates = draft.is_local and target.is_local and not models.service.value("same_tokenizer")
        yield from check_pair(target.facts, draft.facts, translates=translates)
    here = [side.facts for side in (target, draft) if side.is_local and side.facts]
    if here:
        machine, device = look_around(), models.service.value("device")
        yield from check_machine(machine, device)
        yield check_library(machine, device)
        yield from check_memory(machine, here, models.service.value("dtype"), device)


class _Side:
    """The target or the draft: what is known of it once it was examined."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.facts: ModelFacts | None = None
        self.is_local = False

    def examine(
        self, models: ModelOptions, service: str, endpoints: tuple[str, ...], model: str | None
    ) -> Iterator[Finding]:
        if endpoints:
            answers = asyncio.run(ask_services(self.role, service, endpoints, models.client_tls))
            yield from answers.findings
            self.facts = answers.facts
        elif model is not None:
            self.is_local = True
            yield from self._examine_folder(_folder(model), models.tokenizer)

    def _examine_folder(self, folder: Path, tokenizer_of_file: str | None) -> Iterator[Finding]:
        files = list(check_files(self.role, folder))
        yield from files
        if any(one.status is Status.PROBLEM for one in files) and not (folder / "config.json").is_file():
            return
        try:
            config = read_config(folder)
        except ModelLoadError as error:
            advice = "a newer transformers may know it; code from the model's own folder is never run"
            yield Finding(self.role, "config", Status.PROBLEM, str(error), advice)
            return
        yield from check_architecture(self.role, config)
        self.facts = ModelFacts.of_folder(self.role, folder, config, tokenizer_of_file)
        yield from check_tokenizer(self.facts)
        yield from check_end(self.facts)


def _folder(model: str) -> Path:
    """Return the folder of a model; a hub id's where it has been downloaded."""
    if Path(model).exists():
        return Path(model)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError):
        return Path(model)
