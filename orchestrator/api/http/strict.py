"""The base of all request bodies: nothing in them is guessed."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

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

    _num_bytes: int = PrivateAttr()

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Return a body as it arrived. Raises ValidationError."""
        parsed = cls.model_validate_json(body)
        parsed._num_bytes = len(body)
        return parsed

    @property
    def num_bytes(self) -> int:
        """The size of the body as it arrived. The work on it grows with that."""
        return self._num_bytes
