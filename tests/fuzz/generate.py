"""Hostile messages: random values by descriptor, mutated bytes. Imports protobuf only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor as Field

if TYPE_CHECKING:
    import random

    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

INTEGERS = (0, 1, 2, 3, 7, 8, 9, 64, 255, 4096, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1)
LARGE = (2**40, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
TEXTS = ("", "a", "model", "..", "../x", "/abs", "a/b", ".", "0.1.0", "é", "\u202e", "a\nb", "a b")
BYTES = (b"", b"\0", b"\xff" * 4, b"k" * 5, b"k" * 36, b"k" * 128, b"k" * 129, b"\xff" * 300)
_UNSIGNED = {Field.CPPTYPE_UINT32: 2**32 - 1, Field.CPPTYPE_UINT64: 2**64 - 1}
_SIGNED = {Field.CPPTYPE_INT32: 2**31, Field.CPPTYPE_INT64: 2**63}


class Generator:
    """Makes messages of any type.

    Args:
        source: of all choices, so that a run can be repeated.
        likely: by field name, values that make a message pass the first checks.
    """

    def __init__(self, source: random.Random, likely: dict[str, list[Any]]) -> None:
        self._source = source
        self._likely = likely

    def message(self, kind: Descriptor, depth: int = 0) -> Message:
        """A message with some of its fields set."""
        made = message_factory.GetMessageClass(kind)()
        for field in kind.fields:
            if self._source.random() < 0.15:
                continue
            self._set(made, field, depth)
        return made

    def mutated(self, data: bytes) -> bytes:
        """The bytes with a few of them changed, added or removed."""
        changed = bytearray(data)
        for _ in range(self._source.randint(1, 6)):
            at = self._source.randint(0, len(changed))
            match self._source.randint(0, 3):
                case 0:
                    changed[at : at + 1] = self._source.randbytes(1)
                case 1:
                    changed[at:at] = self._source.randbytes(self._source.randint(1, 9))
                case 2:
                    del changed[at : at + self._source.randint(1, 9)]
                case _:
                    del changed[at:]
        return bytes(changed)

    def _set(self, made: Message, field: Field, depth: int) -> None:
        choose = self._source
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            target = getattr(made, field.name)
            for _ in range(choose.choice((0, 1, 2, 17))):
                target[choose.choice(TEXTS) + str(choose.randint(0, 99))] = self._text()
            return
        if field.is_repeated:
            count = choose.choice((0, 1, 1, 2, 3, 8)) if depth < 3 else 1
            if choose.random() < 0.01:
                count = 70
            for _ in range(count):
                if field.message_type is not None:
                    getattr(made, field.name).add().CopyFrom(
                        self.message(field.message_type, depth + 1)
                    )
                else:
                    getattr(made, field.name).append(self._scalar(field))
        elif field.message_type is not None:
            if depth < 5:
                getattr(made, field.name).CopyFrom(self._inner(field, depth))
        else:
            setattr(made, field.name, self._scalar(field))

    def _inner(self, field: Field, depth: int) -> Message:
        if field.message_type.full_name == "google.protobuf.Duration":
            made = message_factory.GetMessageClass(field.message_type)()
            made.seconds = self._source.choice((0, 0, 0, 0, 1, -1, 31, 2**62))
            made.nanos = self._source.choice((0, 1000, 1_000_000, -1, 999_999_999, 2_000_000_000))
            return made
        return self.message(field.message_type, depth + 1)

    def _scalar(self, field: Field) -> Any:
        choose = self._source
        likely = self._likely.get(field.name)
        if likely and choose.random() < 0.8:
            return choose.choice(likely)
        kind = field.cpp_type
        if field.type == Field.TYPE_BYTES:
            return choose.choice((*BYTES, choose.randbytes(choose.randint(1, 40))))
        if kind == Field.CPPTYPE_STRING:
            return self._text()
        if kind in {Field.CPPTYPE_BOOL, Field.CPPTYPE_ENUM}:
            return choose.choice((0, 1))
        return self._number(kind)

    def _number(self, kind: int) -> int:
        choose = self._source
        number = choose.choice((*INTEGERS, *LARGE))
        if kind in _UNSIGNED:
            return min(number, _UNSIGNED[kind])
        bound = _SIGNED[kind]
        return max(-bound, min(number, bound - 1)) * choose.choice((1, 1, -1))

    def _text(self) -> str:
        if self._source.random() < 0.05:
            return "x" * self._source.choice((65, 129, 201, 257, 5000))
        return self._source.choice(TEXTS)
