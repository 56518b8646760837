"""PLACEHOLDER until part-laba's kernel."""
from pathlib import Path

from specgate.errors import InvalidArgument


def make_folder(flag: str, folder: Path) -> Path:
    """Make a folder to write to, and return it. Raises InvalidArgument, with the flag's name, where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(flag, f"{folder} cannot be written: {error.strerror}") from error
    return folder
