"""Programs that tests run and Python does not bring."""

import shutil

import pytest


def program(name: str, package: str = "") -> str:
    """Return the path of a program. Skip the test where it is missing; the reason names its package of Debian."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"no {name}: apt-get install {package or name}")
    return path
