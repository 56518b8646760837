"""What all bodies have in common: nothing in them is guessed at."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from orchestrator.api.chats import MAX_NAME_CHARACTERS

Name = Annotated[str, Field(max_length=MAX_NAME_CHARACTERS)]


def _boolean(value: Any) -> Any:
    if not isinstance(value, bool):
        raise ValueError("input should be a boolean")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("input should be a number")
    return value


# To Python 0 is False and 1 is True; to JSON they are not.
OnlyFalse = Annotated[Literal[False], BeforeValidator(_boolean)]
OnlyZero = Annotated[Literal[0], BeforeValidator(_number)]
OnlyOne = Annotated[Literal[1], BeforeValidator(_number)]


class StrictBody(BaseModel):
    """No unknown field, no number in quotes, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, hide_input_in_errors=True)
