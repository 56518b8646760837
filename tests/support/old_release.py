"""Release 0.1.0: its contract, what it said (scripts/record_contract.py), and services that know no more."""

import base64
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessages

from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from specgate.types import SamplingParams
from tests.support.relay import Relay
from tests.support.services import HELD_OUT_PROMPTS, PAIR

SHORT = 64
"""What ``of_short_context`` holds."""
NUM_PROMPT = 40
LONG_TEXTS = [
    GenerationRequest(tuple(ids[-NUM_PROMPT:]), SamplingParams(temperature=temperature), 80, seed=5, ignore_eos=True)
    for ids in map(TextTokenizer.load(str(PAIR / "target")).encode, HELD_OUT_PROMPTS[:3])
    for temperature in (0.0, 1.0)
]
FOLDER = Path(__file__).parents[1] / "contract" / "0.1.0"


class Kinds(NamedTuple):
    """The messages of a method, as the release has them."""

    request: type[Message]
    response: type[Message]


@cache
def kinds() -> Mapping[str, Kinds]:
    """Return the messages of each method, by "/package.Service/Method"."""
    files = FileDescriptorSet.FromString((FOLDER / "protos.binpb").read_bytes()).file
    known = GetMessages(files)
    return {
        f"/{file.package}.{service.name}/{method.name}": Kinds(
            known[method.input_type[1:]], known[method.output_type[1:]]
        )
        for file in files
        for service in file.service
        for method in service.method
    }


class Recorded(NamedTuple):
    """One call: its messages in order, and whether the client sent them."""

    method: str
    messages: Sequence[tuple[bool, bytes]]

    def read(self, message: bytes, *, is_request: bool = False) -> Any:
        """Return a message as the release reads it."""
        kind = kinds()[self.method]
        return (kind.request if is_request else kind.response).FromString(message)

    @property
    def responses(self) -> list[Any]:
        return [self.read(message) for is_request, message in self.messages if not is_request]


def recorded(ending: str) -> Recorded:
    """Return the call of the method that ends like this."""
    (call,) = (one for one in json.loads((FOLDER / "recorded.json").read_text()) if one["method"].endswith(ending))
    parts = (one.split(" ") for one in call["messages"])
    return Recorded(call["method"], [(sign == ">", base64.b64decode(text)) for sign, text in parts])


class OldRelay(Relay):
    """Makes what is behind it a service of the release: fields that it does not know are lost, both ways."""

    is_old = True

    async def asked(self, method: str, message: bytes) -> bytes:
        """See ``Relay``."""
        return self._known(method, message, is_request=True)

    async def answered(self, method: str, message: bytes) -> bytes:
        """See ``Relay``."""
        return self._known(method, message, is_request=False)

    def _known(self, method: str, message: bytes, *, is_request: bool) -> bytes:
        if not self.is_old or method not in kinds():
            return message
        known = kinds()[method][0 if is_request else 1].FromString(message)
        known.DiscardUnknownFields()
        return known.SerializeToString()
