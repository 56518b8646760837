"""Whether a file has changed since it was read."""

from pathlib import Path

FileStamp = tuple[int, int, int]


def stamp_of(file: Path) -> FileStamp | None:
    """Return what changes with a file's content, None where there is no file that can be looked at."""
    try:
        state = file.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino
