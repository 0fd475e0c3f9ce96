"""docs/configuration.md is what the code says."""

from __future__ import annotations

from pathlib import Path

from kvferry_server.cli.options import all_options
from kvferry_server.cli.reference import render

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_document_is_fresh():
    fresh = DOCUMENT.read_text() == render()
    assert fresh, "run `python -m kvferry_server.cli.reference > docs/configuration.md`"


def test_the_document_names_every_option_variable_and_flag():
    text = render()
    for _, spec, about in all_options():
        assert f"**`{spec.name}`**" in text
        assert about.doc in text
        assert f"`{about.env}`" in text or not about.env
        assert f"`{about.flag}`" in text or not about.flag


def test_no_option_is_called_port():
    assert "KVFERRY_PORT" not in {about.env for _, _, about in all_options()}
