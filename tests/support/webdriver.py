"""A real browser for tests: headless Chromium, driven through chromedriver's HTTP interface.

Owns the little of the WebDriver protocol that the tests need, with the standard library only. Needs
Debian's packages chromium and chromium-driver.
"""

from __future__ import annotations

import base64
import json
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

from .processes import clean_environment, free_ports

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
GUARD_SECONDS = 60.0


class Browser:
    """One window. A context manager."""

    def __init__(self, *flags: str, scripts: bool = True) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="kvferry-browser-")
        self._port = free_ports(1)[0]
        self._flags = [*FLAGS, *flags, f"--user-data-dir={self._profile.name}"]
        self._scripts = scripts
        self._session = ""

    def __enter__(self) -> Self:
        self._driver = subprocess.Popen(
            ["chromedriver", f"--port={self._port}"],
            env=clean_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._wait_for_driver()
        options: dict[str, Any] = {"args": self._flags}
        if not self._scripts:
            options["prefs"] = {"profile.managed_default_content_settings.javascript": 2}
        capabilities = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = self._post("/session", {"capabilities": {"alwaysMatch": capabilities}})
        self._session = f"/session/{made['sessionId']}"
        return self

    def __exit__(self, *_exc_info: object) -> None:
        try:
            if self._session:
                self._call("DELETE", self._session)
        finally:
            self._driver.terminate()
            self._driver.wait(GUARD_SECONDS)
            self._profile.cleanup()

    def open(self, url: str) -> None:
        """Load a page."""
        self._post(f"{self._session}/url", {"url": url})

    def run(self, script: str) -> Any:
        """What a script that ends in `return ...` returns."""
        return self._post(f"{self._session}/execute/sync", {"script": script, "args": []})

    def source(self) -> str:
        """The page as it is now, as HTML."""
        return str(self._call("GET", f"{self._session}/source"))

    def look(self, *, width: int, height: int, dark: bool, mobile: bool) -> None:
        """Take on a screen and a colour scheme."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self._devtools("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._devtools("Emulation.setEmulatedMedia", {"features": [scheme]})

    def screenshot(self, path: Path) -> None:
        """The whole page, however long, as PNG."""
        shot = self._devtools(
            "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True}
        )
        path.write_bytes(base64.b64decode(shot["data"]))

    def console(self) -> list[str]:
        """What the console got since the last look: script errors, failed requests, violations."""
        entries = self._post(f"{self._session}/se/log", {"type": "browser"})
        return [f"{entry['level']}: {entry['message']}" for entry in entries]

    def _devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        body = {"cmd": command, "params": parameters}
        return self._post(f"{self._session}/goog/cdp/execute", body)

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return self._call("POST", path, body)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=GUARD_SECONDS) as answer:
            return json.load(answer)["value"]

    def _wait_for_driver(self) -> None:
        end = time.monotonic() + GUARD_SECONDS
        while True:
            try:
                if self._call("GET", "/status")["ready"]:
                    return
            except OSError:
                if time.monotonic() > end:
                    raise
            time.sleep(0.1)
