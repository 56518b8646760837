"""Command lines read by the real programs without running them: what is wrong with one, in a sentence."""

import argparse
import functools
import json
import re
import tomllib
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any, NoReturn

import typer.main
from pydantic import BaseModel, ValidationError

from orchestrator.api.http.chat import ChatRequest
from orchestrator.api.http.requests import CompletionRequest
from orchestrator.api.http.responses_request import ResponsesRequest
from orchestrator.cli.main import with_found_commands
from specgate.service.config import config_class
from specgate.service.flags import add_flags
from tests.support.pages import ROOT

BODIES: dict[str, type[BaseModel]] = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
    "/v1/responses": ResponsesRequest,
}
_PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9_:./-]*|.*(?:…|\.\.\.|\$|<).*", re.DOTALL)


def problem_of(words: Sequence[str]) -> str | None:
    """Return what is wrong with a command line of ours; None where nothing is, or where the program is not ours."""
    program, *arguments = words
    if program.startswith(("scripts/", "deploy/")):
        return None if (ROOT / program).exists() else f"there is no {program}"
    if program in {"python", "python3"} and arguments and arguments[0].endswith(".py"):
        return None if (ROOT / arguments[0]).is_file() else f"there is no {arguments[0]}"
    read = _PROGRAMS.get(PurePosixPath(program).name)
    return read(arguments) if read else None


@functools.cache
def _root() -> Any:
    return typer.main.get_command(with_found_commands())


def _orchestrator(arguments: Sequence[str]) -> str | None:
    return _of_command(_root(), None, list(arguments))


def _of_command(command: Any, parent: Any, arguments: list[str]) -> str | None:
    context = command.context_class(command, info_name=command.name, parent=parent)
    try:
        values, rest, _ = command.make_parser(context).parse_args(arguments)
        for param in command.params:
            _convert(param, values.get(param.name), context)
    except Exception as error:
        # typer's own class of usage errors is no public one.
        if not hasattr(error, "format_message"):
            raise
        return _unless_open(error.format_message())
    if not rest:
        return None
    if not hasattr(command, "get_command"):
        return f"{rest[0]!r} is one argument too many"
    chosen = command.get_command(context, rest[0])
    return _of_command(chosen, context, rest[1:]) if chosen else f"there is no command {rest[0]!r}"


def _convert(param: Any, value: Any, context: Any) -> None:
    given = value if isinstance(value, (list, tuple)) else [value]
    if (
        value is not None
        and not param.is_eager
        and not any(isinstance(one, str) and _PLACEHOLDER.fullmatch(one) for one in given)
    ):
        param.process_value(context, value)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _service(role: str, arguments: Sequence[str]) -> str | None:
    parser = _Parser(prog=f"{role}-svc")
    parser.add_argument("--version", action="store_true")
    add_flags(parser, config_class(role))
    for action in parser._actions:
        # A page may name one flag alone, with a placeholder for its value.
        action.required, action.type = False, None
    try:
        parser.parse_args(arguments)
    except ValueError as error:
        return _unless_open(str(error))
    return None


def _unless_open(problem: str) -> str | None:
    """Prose may name a flag without its value."""
    is_open = "requires an argument" in problem or "expected one argument" in problem
    return None if is_open else problem


def _make(arguments: Sequence[str]) -> str | None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    unknown = [word for word in arguments if "=" not in word and not word.startswith("-") and word not in targets]
    return f"the Makefile has no target {unknown[0]!r}" if unknown else None


def _curl(arguments: Sequence[str]) -> str | None:
    """A JSON body must be one that the API takes."""
    path = next((path for path in BODIES if any(word.endswith(path) for word in arguments)), None)
    flags = ("-d", "--data", "--json")
    body = next((value for flag, value in pairwise(arguments) if flag in flags), None)
    if path is None or body is None or body.startswith("@"):
        return None
    try:
        BODIES[path].model_validate(json.loads(body))
    except (ValueError, ValidationError) as error:
        return f"the body of {path}: {error}"
    return None


def _pip(arguments: Sequence[str]) -> str | None:
    """The extras of ours that it installs must exist."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    wanted = [extra for word in arguments for found in re.findall(r"^\.\[(.*)\]$", word) for extra in found.split(",")]
    unknown = [extra for extra in wanted if extra not in extras]
    return f"there is no extra {unknown[0]!r}" if unknown else None


_PROGRAMS: dict[str, Callable[[Sequence[str]], str | None]] = {
    "orchestrator": _orchestrator,
    "verifier-svc": functools.partial(_service, "verifier"),
    "drafter-svc": functools.partial(_service, "drafter"),
    "make": _make,
    "curl": _curl,
    "pip": _pip,
}
