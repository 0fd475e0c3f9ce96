"""Ceph RGW on loopback: one mon, one in-memory OSD, one gateway, all on ports of their own.

`kill` and `stop` end the gateway alone, which is what a client sees of a crash; the objects stay in
the OSD's memory until `close`.
"""

from __future__ import annotations

import socket
import uuid
from pathlib import Path

from .processes import Child, free_ports, printed, run_once
from .s3_server import S3Server

_CONFIG = """\
[global]
fsid = {fsid}
mon initial members = a
mon host = [v2:127.0.0.1:{mon_v2},v1:127.0.0.1:{mon_v1}]
public network = 127.0.0.0/8
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
mon warn on pool no redundancy = false
osd pool default pg num = 4
osd pool default pgp num = 4
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd objectstore = memstore
memstore device bytes = 4294967296
osd op num shards = 2
osd data = {dir}/osd
osd journal = {dir}/osd/journal
mon data = {dir}/mon
mgr data = {dir}/mgr
run dir = {dir}/run
keyring = {dir}/keyring
admin socket = {dir}/run/$cluster-$name.asok
pid file = {dir}/run/$name.pid
log file = {dir}/log/$name.log
mon cluster log file = {dir}/log/cluster.log
crash dir = {dir}/crash
osd class load list = *
osd class default list = *
ms bind ipv4 = true
ms bind ipv6 = false
mon osd min up ratio = 0
osd max object name len = 256
osd max object namespace len = 64
debug ms = 0
debug mon = 0
debug osd = 0
debug rgw = 0
debug paxos = 0
paxos propose interval = 0.05
paxos min wait = 0.01
osd heartbeat interval = 5
mon osd auto mark in = true
mon data avail warn = 1
mon data avail crit = 1
[mon.a]
host = {host}
[osd.0]
host = {host}
public addr = 127.0.0.1
cluster addr = 127.0.0.1
[client.admin]
rgw data = {dir}/rgw
rgw frontends = beast endpoint=127.0.0.1:{port}
rgw thread pool size = 64
rgw enable usage log = false
rgw enable ops log = false
"""
_FOLDERS = ("mon", "osd", "rgw", "run", "log", "mgr", "crash")
_START_SECONDS = 60.0


class CephRGW(S3Server):
    """Ceph's S3 gateway, the strictest of the servers."""

    name = "ceph"
    programs = ("ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "ceph")
    start_seconds = _START_SECONDS

    def __init__(self) -> None:
        super().__init__()
        self._cluster: list[Child] = []

    @classmethod
    def version(cls) -> str:
        return printed("ceph", "--version").split()[2]

    @classmethod
    def _parent(cls) -> str | None:
        """The mon syncs every write, so it lives in memory where that is possible."""
        return "/dev/shm" if Path("/dev/shm").is_dir() else None

    @property
    def _settings(self) -> list[str]:
        return ["-c", str(self.directory / "ceph.conf")]

    def prepare(self) -> None:
        for name in _FOLDERS:
            (self.directory / name).mkdir()
        mon_v2, mon_v1 = free_ports(2)
        fsid = str(uuid.uuid4())
        values = {"mon_v2": mon_v2, "mon_v1": mon_v1, "port": self.port, "fsid": fsid}
        text = _CONFIG.format(dir=self.directory, host=socket.gethostname(), **values)
        (self.directory / "ceph.conf").write_text(text)
        self._make_keyring()
        self._start_mon(fsid, f"[v2:127.0.0.1:{mon_v2},v1:127.0.0.1:{mon_v1}]")
        self._start_osd()

    def _make_keyring(self) -> None:
        keyring = str(self.directory / "keyring")
        for name, capabilities in (
            ("mon.", {"mon": "allow *"}),
            ("client.admin", {"mon": "allow *", "osd": "allow *", "mgr": "allow *"}),
            ("osd.0", {"mon": "allow profile osd", "osd": "allow *"}),
        ):
            create = [] if Path(keyring).exists() else ["--create-keyring"]
            pairs = capabilities.items()
            caps = [word for kind, what in pairs for word in ("--cap", kind, what)]
            run_once("ceph-authtool", *create, keyring, "--gen-key", "-n", name, *caps)

    def _start_mon(self, fsid: str, address: str) -> None:
        monmap = str(self.directory / "monmap")
        create = ["--create", "--clobber", "--fsid", fsid, "--addv", "a", address]
        run_once("monmaptool", *create, monmap)
        keyring = str(self.directory / "keyring")
        mkfs = ["--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring]
        run_once("ceph-mon", *self._settings, *mkfs)
        self._run_daemon("ceph-mon", "-i", "a")
        self._ceph("config", "set", "mon", "auth_allow_insecure_global_id_reclaim", "false")

    def _start_osd(self) -> None:
        osd_id = str(uuid.uuid4())
        self._ceph("osd", "new", osd_id)
        self._ceph("auth", "import", "-i", str(self.directory / "keyring"))
        run_once("ceph-osd", *self._settings, "-i", "0", "--mkfs", "--osd-uuid", osd_id)
        osd = self._run_daemon("ceph-osd", "-i", "0")
        osd.wait_until(lambda: "1 up" in printed("ceph", *self._settings, "osd", "stat"), 60)

    def _run_daemon(self, program: str, *arguments: str) -> Child:
        log = self.directory / "log" / f"{program}.out"
        self._cluster.append(Child([program, *self._settings, *arguments, "-f"], log))
        return self._cluster[-1]

    def _ceph(self, *arguments: str) -> None:
        run_once("ceph", *self._settings, "--connect-timeout", "20", *arguments)

    def command(self) -> list[str]:
        return ["radosgw", *self._settings, "--no-mon-config", "-n", "client.admin", "-f"]

    def make_bucket(self, name: str) -> None:
        marker = self.directory / "user-made"
        if not marker.exists():
            user = ["--uid=t", "--display-name=t"]
            keys = [f"--access-key={self.access_key}", f"--secret-key={self.secret_key}"]
            run_once("radosgw-admin", *self._settings, "user", "create", *user, *keys)
            marker.touch()
        super().make_bucket(name)

    @property
    def pids(self) -> list[int]:
        return super().pids + [each.pid for each in self._cluster if each.running]

    def abandon(self) -> None:
        self.kill()
        for child in self._cluster:
            child.kill()
        self._cluster.clear()
