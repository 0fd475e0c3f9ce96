"""The status page in a real browser. `make browser-test`; needs chromium and chromium-driver.

With KVFERRY_SCREENSHOTS=DIR the pictures are kept there for a person to look at.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import s3, serve  # noqa: F401 -- fixtures
from tests.cli.harness import Daemon, attached, environment, key, kvferry, wait_for
from tests.support.fault_server import Fault
from tests.support.processes import free_ports
from tests.support.webdriver import Browser

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not shutil.which("chromedriver"), reason="no chromedriver"),
]

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
STORED = (
    "return [...document.querySelectorAll('th')].find(each => each.textContent === 'stored')"
    ".nextSibling.textContent"
)


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    directory = Path(os.environ.get("KVFERRY_SCREENSHOTS", tmp_path))
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@contextmanager
def load_on(daemon: Daemon) -> Iterator[None]:
    """An engine that stores, looks up and loads."""
    stop = threading.Event()

    def work() -> None:
        number = 100
        with attached(daemon.sockets) as client:
            while not stop.wait(0.05):
                number += 8
                keys = [key(number + each) for each in range(8)]
                client.store(keys, list(range(8)))
                client.wait_results(30)
                client.lookup([key(number - each) for each in range(-4, 12)])
                client.load(keys, list(range(8)))
                client.wait_results(30)
                client.take_results()
                client.take_lookups()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def serving(serve, **options) -> tuple[Daemon, str]:  # noqa: F811
    port = free_ports(1)[0]
    daemon = serve("--http-listen", f"127.0.0.1:{port}", *options.pop("more", ()), **options)
    daemon.wait_ready()
    return daemon, f"http://127.0.0.1:{port}/"


def test_the_numbers_update_without_an_error(serve, shots):  # noqa: F811
    daemon, url = serving(serve)
    with load_on(daemon), Browser() as browser:
        browser.open(url)
        wait_for(lambda: browser.run(STORED) != "0")
        first = browser.run(STORED)
        loaded = browser.run("return performance.getEntriesByType('navigation').length")
        wait_for(lambda: browser.run(STORED) != first)
        assert browser.run("return performance.getEntriesByType('navigation').length") == loaded
        wait_for(lambda: browser.run("return document.querySelectorAll('polyline').length") >= 4)
        wait_for(lambda: len(browser.run(POINTS).split()) >= 6)
        for name, (width, height) in SIZES.items():
            for theme in ("light", "dark"):
                browser.look(
                    width=width, height=height, dark=theme == "dark", mobile=name == "phone"
                )
                wide = browser.run("return document.documentElement.scrollWidth")
                assert wide <= width, f"{name} {theme} scrolls sideways"
                clipped = browser.run(CLIPPED)
                assert not clipped, f"{name} {theme}: {clipped}"
                assert browser.run(CONTRAST) == [], f"{name} {theme}"
                browser.screenshot(shots / f"status-{name}-{theme}.png")
        assert browser.console() == []


POINTS = "return document.querySelector('polyline.store').getAttribute('points')"
CLIPPED = """
return [...document.querySelectorAll('.card *')]
  .filter(each => each.scrollWidth > each.clientWidth + 1 && each.clientWidth > 0)
  .map(each => each.outerHTML.slice(0, 80));
"""
CONTRAST = """
function channel(value) {
  value /= 255;
  return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
}
function luminance(colour) {
  const [r, g, b] = colour.match(/[0-9.]+/g).map(Number);
  return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
}
function background(element) {
  for (let at = element; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (colour !== 'rgba(0, 0, 0, 0)') return colour;
  }
  return 'rgb(255, 255, 255)';
}
const low = [];
for (const each of document.querySelectorAll('h1, h2, p, th, td, b, .pill, .name, .value')) {
  const pair = [luminance(getComputedStyle(each).color), luminance(background(each))];
  const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
  if (ratio < 4.5) low.push(each.textContent.slice(0, 40) + ' ' + ratio.toFixed(2));
}
return low;
"""
"""Texts whose contrast is below WCAG's 4.5 to 1."""


def test_the_numbers_work_without_javascript(serve):  # noqa: F811
    daemon, url = serving(serve)
    with load_on(daemon), Browser(scripts=False) as browser:
        browser.open(url)
        wait_for(lambda: stored_in(browser.source()) > 0)
        first = stored_in(browser.source())
        wait_for(lambda: stored_in(browser.source()) > first)
        assert browser.console() == []


def stored_in(source: str) -> int:
    number = source.partition(">stored</th><td>")[2].partition("<")[0]
    return int(number.replace(",", "") or 0)


def test_what_is_wrong_is_told(serve, s3, shots):  # noqa: F811
    daemon, url = serving(
        serve,
        more=("--store-url", f"s3://{s3.bucket}/p"),
        env=environment(**s3.environment()),
    )
    with Browser() as browser:
        browser.open(url)
        state = "return document.getElementById('state').textContent"
        assert browser.run(state) == "working"
        s3.add(Fault(method="PUT", key="*.bin", status=500))
        with load_on(daemon):
            wait_for(lambda: browser.run(state) == "degraded")
        assert "the breaker for writing is open" in browser.source()
        assert not kvferry("pause", "loads", "--socket-dir", str(daemon.sockets)).status
        wait_for(lambda: browser.run(state) == "paused")
        browser.look(width=390, height=844, dark=False, mobile=True)
        browser.screenshot(shots / "status-trouble.png")
        daemon.kill()
        wait_for(lambda: browser.run(state) == "no answer")


def test_the_page_loads_nothing_from_elsewhere(serve):  # noqa: F811
    _daemon, url = serving(serve)
    with Browser() as browser:
        browser.open(url)
        browser.run("return 1")
        names = "return performance.getEntriesByType('resource').map(each => each.name)"
        wait_for(lambda: browser.run(names))
        assert set(browser.run(names)) == {url}
