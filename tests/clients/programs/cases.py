"""What the programs in this folder share: cases by name, run one after the other, each told in a line of JSON.

A program runs in its client's own environment: nothing of ours is imported but this file.
"""

import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

PROMPT = "def main():\n"
QUESTION = "What is the capital of France?"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
MAX_TOKENS = 16
OBJECT_TOKENS = 256
"""Room for an object, where a tiny model puts as many blanks into it as it may."""
KEY = "none"
WIDE = {"structured_outputs": {"choice": ["naïve café, 日本語 🙂, done"]}}
"""In a request: its only answer has characters of two, three and four bytes."""
CITY_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"enum": ["Paris", "Rome"]}, "large": {"type": "boolean"}},
    "required": ["name", "large"],
    "additionalProperties": False,
}
CITIES = ("Paris", "Rome")
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "Tells the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": list(CITIES)}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TOOL: dict[str, Any] = {"type": "function", "function": WEATHER}


class Door(NamedTuple):
    """Where the client is to go, and what the model is called there."""

    url: str
    model: str


Case = Callable[[Door], Any]
_CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Make a case of a function. It returns what is to be compared, and fails by an exception."""
    _CASES[function.__name__] = function
    return function


def main() -> None:
    """Run the cases that the command line names, and print a line for each: MODEL URL CASE ... URL CASE ..."""
    model, *arguments = sys.argv[1:]
    url = ""
    for argument in arguments:
        if argument.startswith("http:"):
            url = argument
        else:
            outcome = _outcome(_CASES[argument], Door(url, model))
            print(json.dumps({"case": argument, "url": url, **outcome}), flush=True)


def _outcome(function: Case, door: Door) -> dict[str, Any]:
    try:
        value = function(door)
        return {"value": asyncio.run(value) if inspect.iscoroutine(value) else value}
    except Exception as error:
        traceback.print_exc()
        place = traceback.extract_tb(error.__traceback__)[-1]
        return {"error": f"{type(error).__name__}: {str(error) or place.line}"}
