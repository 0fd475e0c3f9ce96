"""What a chunk's procedure asks its driver to do.

Owns: the vocabulary between the procedures of the object stores (generators that touch a slot) and
the driver threads that run them. A procedure yields a `Move` or an `Ask` and is resumed with the
answer on the same driver thread; it returns the chunk's `TransferStatus`. Imports core only.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from kvferry_server.core.types import JobKind, TransferStatus

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Move:
    """One NIXL transfer of one chunk.

    Args:
        kind: STORE writes `buffer` to the target, LOAD fills it from the target.
        buffer: the slot; the procedure keeps it alive until it is resumed.
        target: key of an object in the bucket, or an open file descriptor.
    """

    kind: JobKind
    buffer: memoryview
    target: str | int


@dataclass(frozen=True, slots=True)
class Ask:
    """A blocking question, answered off the driver thread while other chunks go on.

    It must not hold the slot's buffer.
    """

    question: Callable[[], None]


Step = Move | Ask
Steps = Generator[Step, bool, Answer]
Procedure = Generator[Step, bool, TransferStatus]


def move(kind: JobKind, buffer: memoryview, target: str | int) -> Steps[bool]:
    """Run one transfer; True if NIXL says that it is done, False if it failed."""
    return (yield Move(kind, buffer, target))


def ask(question: Callable[[], Answer]) -> Steps[Answer]:
    """Run a blocking question elsewhere and return its answer, or raise its exception here."""
    answers: list[Answer] = []

    def keep() -> None:
        answers.append(question())

    yield Ask(keep)
    return answers[0]
