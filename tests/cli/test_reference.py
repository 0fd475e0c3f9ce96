"""docs/configuration.md and docs/metrics.md are what the code says."""

from __future__ import annotations

from pathlib import Path

from kvferry_server.adapters.metric_families import FAMILIES
from kvferry_server.cli import metrics_reference
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


def test_the_metrics_document_is_fresh():
    document = DOCUMENT.with_name("metrics.md")
    fresh = document.read_text() == metrics_reference.render()
    assert fresh, "run `python -m kvferry_server.cli.metrics_reference > docs/metrics.md`"


def test_metrics_follow_prometheus_conventions():
    assert len({family.full_name for family in FAMILIES}) == len(FAMILIES)
    for family in FAMILIES:
        assert family.name.isidentifier()
        assert not family.name.endswith("_total")
        assert family.help.endswith(".")
        assert all(len(labels) == len(family.labels) for labels in family.series)
        assert len(set(family.series)) == len(family.series)
        assert family.name.endswith("_seconds") or family.kind != "histogram"
        assert not {"le", "quantile", "instance", "job"} & set(family.labels)
