"""A text that no accident shows: not by print, log, copy, comparison or pickle.

Owns the type of access keys, secret keys and session tokens. Imports the standard library only.
"""

from __future__ import annotations

import hmac
from typing import NoReturn


class Secret:
    """A secret text; `reveal` is the only way to it, so that each use can be found by name.

    `repr`, `str` and every format show a placeholder. What would spread it or take time that
    depends on it (pickling, copying, `==`, hashing) raises TypeError; `same_as` compares.
    """

    __slots__ = ("__text",)

    def __init__(self, text: str) -> None:
        self.__text = text

    def reveal(self) -> str:
        """The text itself, for the library that needs it."""
        return self.__text

    def same_as(self, other: Secret) -> bool:
        """Whether both hold the same text, in a time that does not depend on where they differ."""
        return hmac.compare_digest(self.__text.encode(), other.reveal().encode())

    def __bool__(self) -> bool:
        """False if it is empty."""
        return bool(self.__text)

    def __repr__(self) -> str:
        return "<secret>"

    def __format__(self, _spec: str) -> str:
        return repr(self)

    def __eq__(self, _other: object) -> NoReturn:
        raise TypeError("a secret is not compared with ==: use same_as")

    def __hash__(self) -> NoReturn:
        raise TypeError("a secret is no key of a table")

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError("a secret is neither pickled nor copied")
