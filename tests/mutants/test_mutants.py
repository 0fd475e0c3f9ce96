"""Each mutant can be built, its test exists, and the page lists them all."""

from __future__ import annotations

import pytest

from .catalogue import MUTANTS, REPOSITORY, Mutant
from .report import DOCUMENT, with_table


@pytest.mark.parametrize("mutant", [pytest.param(each, id=each.ident) for each in MUTANTS])
def test_the_mutant_can_be_built_and_its_test_exists(mutant: Mutant):
    assert (REPOSITORY / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.old != mutant.new
    path, *_, name = mutant.test.split("::")
    folder = (REPOSITORY / path).parent
    texts = [file.read_text() for file in folder.glob("*.py")]
    assert any(f"def {name.partition('[')[0]}(" in text for text in texts)


def test_ids_are_those_of_the_page():
    assert len({each.ident for each in MUTANTS}) == len(MUTANTS) >= 25
    assert DOCUMENT.read_text() == with_table(DOCUMENT.read_text())
