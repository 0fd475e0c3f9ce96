"""S3 is gone for two minutes: `make outage`.

An engine's side asks without a pause, the probes run exactly as deploy/kubernetes defines them, and
Prometheus evaluates the rules of deploy/prometheus. Ends with 1 if a probe fails, requests stop, a
wrong byte is loaded, the expected alert does not fire, or something does not heal by itself. Needs
Debian's package prometheus.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

import yaml

from tests.support.s3_servers import started

from .prometheus import ROOT
from .scene import Scene, page, scene

BEFORE_SECONDS = 40.0
OUTAGE_SECONDS = 120.0
AFTER_SECONDS = 120.0
EXPECTED = "KvferryBreakerOpen"
MANIFEST = ROOT / "deploy" / "kubernetes" / "base" / "deployment.yaml"
CONFIG = "[timeouts]\ntransfer_seconds = 5\n"


@dataclass
class Probes:
    """The daemon's probes, run by the manifest's periods and time limits until `stop`.

    Args:
        outcomes: each probe's name, and whether it passed.
    """

    on: Scene
    outcomes: list[tuple[str, bool]] = field(default_factory=list)
    _stopping: threading.Event = field(default_factory=threading.Event)

    def start(self) -> list[threading.Thread]:
        """One thread for each probe."""
        pod = yaml.safe_load(MANIFEST.read_text())["spec"]["template"]["spec"]
        (daemon,) = pod["initContainers"]
        probes = {name: daemon[name] for name in daemon if name.endswith("Probe")}
        for name, probe in probes.items():
            print(f"{name}: {probe['exec']['command']} every {probe['periodSeconds']} s")
        # The startup probe passes once; from then on the kubelet asks the liveness probe.
        self._once("startupProbe", probes["startupProbe"])
        threads = [
            threading.Thread(target=self._repeat, args=("livenessProbe", probes["livenessProbe"])),
            threading.Thread(target=self._http),
        ]
        for thread in threads:
            thread.start()
        return threads

    def stop(self) -> None:
        """The threads end within a period."""
        self._stopping.set()

    def _repeat(self, name: str, probe: dict[str, object]) -> None:
        while not self._stopping.wait(float(str(probe["periodSeconds"]))):
            self._once(name, probe)

    def _once(self, name: str, probe: dict[str, object]) -> None:
        command = [sys.executable, "-m", "kvferry_server.cli", "health"]
        try:
            done = subprocess.run(
                [*command, "--socket-dir", str(self.on.sockets)],
                capture_output=True,
                check=False,
                timeout=float(str(probe["timeoutSeconds"])),
            )
            passed = done.returncode == 0
        except subprocess.TimeoutExpired:
            passed = False
        self.outcomes.append((name, passed))

    def _http(self) -> None:
        while not self._stopping.wait(5):
            for path in ("/healthz", "/readyz"):
                self.outcomes.append((path, page(self.on.port, path)))


@dataclass
class Watch:
    """Which alerts fired when, in seconds from the start of the outage."""

    on: Scene
    outage: float
    fired: dict[str, float] = field(default_factory=dict)
    resolved: dict[str, float] = field(default_factory=dict)

    def look(self) -> set[str]:
        """Ask Prometheus once."""
        firing, now = self.on.prometheus.firing(), time.monotonic() - self.outage
        for name in firing - set(self.fired):
            self.fired[name] = now
        for name in set(self.fired) - firing - set(self.resolved):
            self.resolved[name] = now
        return firing

    def until(self, seconds: float) -> None:
        """Look each second until so long after the start of the outage."""
        while time.monotonic() - self.outage < seconds:
            self.look()
            time.sleep(1)


def phase(on: Scene, name: str, start: float, end: float) -> dict[str, float]:
    """Sum of what the engine's side did between two times."""
    total: dict[str, float] = {"longest_seconds": 0.0}
    for second in on.requests():
        if not start <= second["at"] <= end:
            continue
        for key, value in second.items():
            if key == "longest_seconds":
                total[key] = max(total[key], value)
            elif key != "at":
                total[key] = total.get(key, 0) + value
    rate = total.get("requests", 0) / (end - start)
    shown = ", ".join(f"{key} {value:g}" for key, value in sorted(total.items()))
    print(f"{name:12} {rate:5.1f} requests/s; {shown}")
    return total


def main() -> int:
    """Before, without and after S3."""
    problems: list[str] = []
    with started("localbucket") as server, scene(server.bucket, server.environment(), CONFIG) as on:
        probes = Probes(on)
        threads = probes.start()
        began = time.time()
        time.sleep(BEFORE_SECONDS)
        gone, watch = time.time(), Watch(on, time.monotonic())
        server.kill()
        watch.until(OUTAGE_SECONDS)
        server.start()
        back = time.time()
        while time.time() - back < AFTER_SECONDS and (EXPECTED in watch.look()):
            time.sleep(1)
        watch.until(OUTAGE_SECONDS + AFTER_SECONDS)
        healed = time.time()
        still = watch.look()
        probes.stop()
        for thread in threads:
            thread.join()
        before = phase(on, "before", began, gone)
        without = phase(on, "S3 gone", gone, back)
        after = phase(on, "S3 back", back, healed)
        states = on.prometheus.query('kvferry_breaker_state{state="closed"} == 1')
        restarts = on.prometheus.query("changes(kvferry_start_time_seconds[10m]) > 0")
    failed = [name for name, passed in probes.outcomes if not passed]
    print(f"probes       {len(probes.outcomes)} run, {len(failed)} failed {sorted(set(failed))}")
    for name, at in watch.fired.items():
        until = watch.resolved.get(name)
        print(f"alert        {name} fired {at:.0f} s after S3 went, ended at {until or 0:.0f} s")
    checks = {
        "a probe failed": bool(failed),
        "requests stopped": without.get("requests", 0) < OUTAGE_SECONDS / 3,
        "wrong bytes": any(each.get("wrong_bytes") for each in (before, without, after)),
        "nothing was loaded before": not before.get("loaded"),
        "nothing was loaded after": not after.get("loaded"),
        "nothing was stored after": not after.get("stored"),
        f"{EXPECTED} did not fire": EXPECTED not in watch.fired,
        f"alerts still fire: {still}": bool(still),
        "a breaker is still not closed": len(states) != 2,
        "the daemon started anew": bool(restarts),
    }
    problems = [text for text, wrong in checks.items() if wrong]
    print("\n".join(problems) or "healed       without a hand: breakers closed, no alert fires")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
