"""``orchestrator keys add | list | revoke``: the file of clients' keys. Gateways that run see it within seconds."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.table import Table

from orchestrator.api.keys.key_file import (
    KeyEntry,
    KeyFile,
    KeyLimits,
    Role,
    hash_of,
    locked,
    new_key,
    read_keys,
    write_keys,
)
from orchestrator.terminal.render import output_console
from specgate.errors import InvalidArgument

keys = typer.Typer(name="keys", help="Manage API keys in the file of gateway.keys_file.", no_args_is_help=True)

File = Annotated[Path, typer.Option("--file", metavar="FILE", help="The key file; created if missing.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Owner of the key: letters, digits, . _ -")]
Limit = Annotated[int | None, typer.Option(min=1, show_default="no limit")]


@keys.command()
def add(
    name: Name,
    file: File,
    role: Annotated[Role, typer.Option(help="client generates; metrics reads /metrics, and nothing else.")] = (
        Role.CLIENT
    ),
    max_running: Limit = None,
    requests_per_minute: Limit = None,
    tokens_per_minute: Limit = None,
) -> None:
    """Make a key and print it once; the file holds only its hash. Limits hold for each gateway replica."""
    key = new_key()
    limits = KeyLimits(
        max_running=max_running, requests_per_minute=requests_per_minute, tokens_per_minute=tokens_per_minute
    )
    try:
        today = datetime.now(UTC).date()
        entry = KeyEntry(name=name, sha256=hash_of(key), role=role, created=today, limits=limits)
    except ValidationError as error:
        raise InvalidArgument("NAME", f"{name!r}: {error.errors(include_url=False)[0]['msg']}") from None
    with locked(file):
        known = read_keys(file) if file.exists() else KeyFile()
        if known.active(name) is not None:
            raise InvalidArgument("NAME", f"{name!r} already has a key; revoke it first")
        write_keys(file, [*known.keys, entry])
    print(key)


@keys.command("list")
def list_keys(file: File) -> None:
    """List names, roles, dates and limits. The keys themselves are not stored."""
    table = Table("name", "role", "created", "revoked", "running", "requests a minute", "tokens a minute")
    for entry in read_keys(file).keys:
        limits = (entry.limits.max_running, entry.limits.requests_per_minute, entry.limits.tokens_per_minute)
        days = (str(day) if day else "" for day in (entry.created, entry.revoked))
        table.add_row(entry.name, entry.role, *days, *("no limit" if limit is None else str(limit) for limit in limits))
    output_console().print(table)


@keys.command()
def revoke(name: Name, file: File) -> None:
    """Revoke a key. Its running requests go on to their end."""
    with locked(file):
        known = read_keys(file)
        entry = known.active(name)
        if entry is None:
            raise InvalidArgument("NAME", f"{name!r} has no key in {file}")
        revoked = entry.model_copy(update={"revoked": datetime.now(UTC).date()})
        write_keys(file, [revoked if one is entry else one for one in known.keys])
    print(f"{name}: revoked")
