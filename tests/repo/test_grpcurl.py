"""docs/grpcurl.md, run as it stands with the real grpcurl: every command works, and as shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repo.grpcurl_page import PAGE, comparable, daemon, run, shown

pytestmark = pytest.mark.matrix


def test_every_command_of_the_page_works_and_shows_what_the_page_shows(tmp_path: Path) -> None:
    page = PAGE.read_text()
    with daemon(tmp_path) as directory:
        outputs = run(page, directory, tmp_path)
    for expected in (
        "kvferry.v1.OffloadService",
        "PRESENCE_ABSENT",
        "CHUNK_OUTCOME_STORED",
        "CHUNK_OUTCOME_LOADED",
        "hello from slot 0",
    ):
        assert any(expected in output for output in outputs)
    again = "run `python -m tests.repo.grpcurl_page` and look at what has changed"
    for output, claimed in zip(outputs, shown(page), strict=True):
        assert comparable(output) == comparable(claimed), again
