"""What an option is, beside its name, type and default. Imports the standard library only."""

from __future__ import annotations

from dataclasses import Field, dataclass, field
from typing import Any, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Option:
    """What a field can't say itself.

    Args:
        doc: what it does, for the reference; one or two sentences.
        unit: of a number, such as "seconds" or "bytes".
        env: environment variable that sets it, if one does.
        flag: command-line flag that sets it, if one does.
        default_doc: the default in words, where it depends on the user.
        minimum: lowest value of a number, or of each number of a list.
        maximum: highest value of a number, or of each number of a list.
        choices: the only values of a string; all of them if empty.
        engine: field of `EngineSettings` that it sets, if one.
        server: field of `ServerSettings` that it sets as it is, if one.
    """

    doc: str
    unit: str = ""
    env: str = ""
    flag: str = ""
    default_doc: str = ""
    minimum: float = 0
    maximum: float = 0
    choices: tuple[str, ...] = ()
    engine: str = ""
    server: str = ""


def option(default: Value, about: Option) -> Value:
    """A field of an option dataclass."""
    return field(default=default, metadata={"option": about})


def option_of(spec: Field[Any]) -> Option:
    """The option behind a field of one of these dataclasses."""
    about: Option = spec.metadata["option"]
    return about
