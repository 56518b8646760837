"""Protobuf messages made of nothing but their descriptors: every field at its boundaries, or a few of a valid one."""

from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

MAX_DEPTH = 3
_INT = FieldDescriptor
UNSIGNED_32 = st.sampled_from((0, 1, 2, 3, 8, 63, 64, 65, 511, 512, 2**31 - 1, 2**31, 2**32 - 1))
BY_TYPE: dict[int, st.SearchStrategy[Any]] = {
    _INT.TYPE_UINT32: UNSIGNED_32,
    _INT.TYPE_UINT64: UNSIGNED_32 | st.sampled_from((2**53, 2**63, 2**64 - 1)),
    _INT.TYPE_FLOAT: st.sampled_from((-1.0, -0.0, 0.0, 1e-45, 0.5, 1.0, 1.5, 2.0, 100.0, 3e38))
    | st.sampled_from((float("nan"), float("inf"), float("-inf"))),
    _INT.TYPE_BOOL: st.booleans(),
    _INT.TYPE_STRING: st.sampled_from(("", "a", "vocabulary", "\x00", "é🙂", "x" * 4097, "{{ 1 }}")),
}
LENGTHS = st.sampled_from((0, 1, 2, 3, 65, 300))


def values_of(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    """Return values of one field, one of many where it is repeated."""
    if field.message_type is not None:
        return messages(field.message_type, depth - 1)
    if field.enum_type is not None:
        return st.sampled_from((*field.enum_type.values_by_number, 99, -1))
    return BY_TYPE[field.type]


@st.composite
def lists_of(draw: Any, one: st.SearchStrategy[Any]) -> list[Any]:
    """A list of any length: a few values, over and over."""
    few = draw(st.lists(one, min_size=1, max_size=3))
    return [few[index % len(few)] for index in range(draw(LENGTHS))]


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _fill(message: Any, field: FieldDescriptor, value: Any) -> None:
    if _is_map(field):
        entries = getattr(message, field.name)
        for entry in value:
            entries[entry.key] = entry.value
    elif field.is_repeated:
        getattr(message, field.name).extend(value)
    elif field.message_type is not None:
        getattr(message, field.name).CopyFrom(value)
    else:
        setattr(message, field.name, value)


def changed(message: Message, fields: dict[FieldDescriptor, Any]) -> Any:
    """Return a copy of a message with other values in these fields."""
    copy = type(message)()
    copy.CopyFrom(message)
    for field, value in fields.items():
        copy.ClearField(field.name)
        _fill(copy, field, value)
    return copy


@st.composite
def mutated(draw: Any, valid: Message, most: int = 2, depth: int = MAX_DEPTH) -> Any:
    """A valid message with a few fields changed, at any depth."""
    # Another message in the place of this one is no small change.
    fields = [field for field in valid.DESCRIPTOR.fields if not _has_sibling(valid, field)]
    chosen = draw(st.lists(st.sampled_from(fields), max_size=most, unique=True)) if fields else []
    return changed(valid, {field: draw(_value(field, valid, depth)) for field in chosen})


def _has_sibling(valid: Message, field: FieldDescriptor) -> bool:
    oneof = field.containing_oneof
    return oneof is not None and valid.WhichOneof(oneof.name) not in (None, field.name)


def _value(field: FieldDescriptor, valid: Message, depth: int) -> st.SearchStrategy[Any]:
    if field.is_repeated:
        return lists_of(values_of(field, depth))
    if field.message_type is not None and valid.HasField(field.name):
        # Not another one: this one, a little changed.
        return mutated(getattr(valid, field.name), depth=depth)
    return values_of(field, depth)


def messages(descriptor: Descriptor, depth: int = MAX_DEPTH) -> st.SearchStrategy[Any]:
    """Return messages of a type whose fields are set or not, to anything that their type takes."""
    empty = GetMessageClass(descriptor)()
    if depth < 0:
        return st.just(empty)
    return mutated(empty, most=4, depth=depth)


def on_the_wire(make: Callable[[], st.SearchStrategy[Any]]) -> st.SearchStrategy[bytes]:
    """Return a message's bytes, now and then cut, with a field that nobody knows behind it, or no message at all."""
    sound = make().map(lambda message: message.SerializeToString())
    unknown = sound.map(lambda data: data + b"\xfa\x3f\x03abc")
    cut = st.tuples(sound, st.integers(0, 40)).map(lambda pair: pair[0][: pair[1]])
    return sound | sound | sound | unknown | cut | st.binary(max_size=40)
