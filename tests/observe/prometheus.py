"""A real Prometheus (Debian's package) that scrapes one daemon with the rules of deploy/prometheus.

Imports the standard library and tests.support.
"""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.processes import Child, free_ports, listens

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "kvferry.rules.yml"
START_SECONDS = 60.0
CONFIG = """
global:
  scrape_interval: 1s
  scrape_timeout: 1s
rule_files: [{rules}]
scrape_configs:
  - job_name: kvferry
    static_configs:
      - targets: ["127.0.0.1:{target}"]
"""


class Prometheus:
    """Started on construction.

    Args:
        directory: for its data.
        target: port of the daemon's HTTP listener.
    """

    def __init__(self, directory: Path, target: int) -> None:
        (self._port,) = free_ports(1)
        config = directory / "prometheus.yml"
        config.write_text(CONFIG.format(rules=RULES, target=target))
        self._child = Child(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{self._port}",
            ],
            directory / "prometheus.log",
        )
        self._child.wait_until(lambda: listens(self._port), START_SECONDS)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What an expression gives now."""
        return self._get("query", query=expression)["result"]

    def query_range(self, expression: str, start: float, end: float) -> list[dict[str, Any]]:
        """What it gave, each second."""
        answer = self._get("query_range", query=expression, start=start, end=end, step=1)
        return answer["result"]

    def firing(self) -> set[str]:
        """Names of the alerts that fire now."""
        alerts = self._get("alerts")["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    def rules(self) -> list[dict[str, Any]]:
        """Every rule and its health."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def stop(self) -> None:
        """End it."""
        self._child.stop()

    def _get(self, path: str, **parameters: Any) -> Any:
        query = urllib.parse.urlencode(parameters)
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{query}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]
