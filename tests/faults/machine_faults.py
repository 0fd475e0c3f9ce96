"""Faults of the machine: disk, memory, descriptors, clock, keys."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import struct
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kvferry_client import JobKind, Outcome
from tests.support.fault_server import Fault

from .catalogue import fault
from .content import content_of
from .rig import NotProvenError, wait_for
from .s3_faults import CHUNKS, LOADED, STORED, UNAVAILABLE, expect

if TYPE_CHECKING:
    from .rig import Engine, Scenario

KIND = "Machine"
DISK_BYTES = 2 << 20
JUMP_SECONDS = 7200
SHIM = Path(__file__).with_name("clock_shim.c")


@fault("F70", KIND, "disk full in the file store", store="file", started=False)
def disk_full(s: Scenario) -> None:
    """Stores fail and leave no half object, loads go on; with room it works again. Needs root."""
    if os.geteuid():
        raise NotProvenError("only root may look into the daemon's mount namespace")
    disk = s.directory.view
    script = f'mount -t tmpfs -o size={DISK_BYTES} tmpfs {disk} && exec "$@"'
    s.start(prefix=["unshare", "-m", "sh", "-c", script, "sh"])
    s.directory.view = Path(f"/proc/{s.daemon.pid}/root{disk}")
    keys = s.engine.stored(8)
    for _ in range(4):
        s.engine.store(12)
        expect(s.engine.settle(), STORED, UNAVAILABLE, Outcome.SHED)
    state = os.statvfs(s.directory.view)
    free = state.f_bavail * state.f_frsize
    s.prove(free < 65_536, f"{free} bytes free on a disk of {DISK_BYTES}")
    s.prove(s.engine.ledger.tally.outcomes["UNAVAILABLE"], "stores failed for want of space")
    s.engine.load(keys)
    expect(s.engine.settle(), LOADED)
    for path in sorted(s.directory.view.rglob("*.bin"))[:12]:
        path.unlink()
    s.over()


def cut_region(victim: Engine) -> None:
    """Truncate its file; this process must not touch it any more."""
    victim.ledger.readable = False
    os.ftruncate(victim.region.fd, 0)


@fault("F71", KIND, "a region truncated before a job", store="file")
def region_truncated(s: Scenario) -> None:
    """The size is looked at before each transfer: the job fails, nothing else does."""
    victim = s.add_engine()
    victim.attach()
    cut_region(victim)
    s.prove(os.fstat(victim.region.fd).st_size == 0, "the file has 0 bytes")
    keys, slots = victim.new_keys(2), victim.ledger.take_slots(2)
    job = victim.client.store(keys, slots)
    victim.ledger.submitted(job, JobKind.STORE, keys, slots)
    expect(victim.settle(), Outcome.INTERNAL)
    s.over()
    if len(s.daemon.pids) != 1 or not s.daemon.running.running:
        raise AssertionError("the daemon must go on")


@fault("F72", KIND, "a region truncated under a running load", store="stub")
def region_truncated_under_way(s: Scenario) -> None:
    """It may cost the daemon its life, never an engine: leases end, a new daemon goes on."""
    victim = s.add_engine()
    victim.attach()
    keys = victim.stored(2)
    rule = s.stub.add(Fault(method="GET", key=CHUNKS, hang="body"))
    victim.load(keys)
    wait_for(lambda: s.stub.counters().in_flight == 2, "2 GET")
    s.engine.store(4)
    expect(s.engine.settle(), STORED)
    cut_region(victim)
    s.stub.remove(rule)
    gone = (Outcome.LOST, Outcome.INTERNAL, Outcome.CORRUPT, Outcome.WRONG_SIZE)
    expect(victim.settle(), UNAVAILABLE, *gone)
    s.over()
    if s.daemon.running.running:
        s.prove(True, "cut during the load; the daemon lives")
    else:
        status = s.daemon.running.status
        s.prove(status == -signal.SIGBUS, "cut during the load; the daemon ended by SIGBUS")
        s.daemon.start()


@fault("F73", KIND, "no descriptor left in the daemon", store="stub")
def out_of_descriptors(s: Scenario) -> None:
    """New connections fail, and so do jobs and attaches; with descriptors it works again."""
    keys = s.engine.stored(4)
    pid = s.daemon.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    s.proxy.reset_connections()
    time.sleep(0.5)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (s.daemon.descriptors(), hard))
    late = s.add_engine()
    s.engine.store(4)
    s.engine.load(keys)
    got = s.engine.settle()
    failed = sum(outcome not in {STORED, LOADED} for outcome in got)
    attached = late.client.wait_attached(2.0)
    s.prove(failed or not attached, f"{failed} of {len(got)} chunks failed, attached: {attached}")
    expect(got, STORED, LOADED, UNAVAILABLE, Outcome.SHED, Outcome.EXPIRED, Outcome.DENIED)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    s.over()
    late.attach()
    wait_for(late.works, "the late engine to work")


@fault("F74", KIND, "the wall clock jumps 2 h ahead, then 4 h back", store="stub", started=False)
def clock_jump(s: Scenario) -> None:
    """Deadlines and ages are monotonic: nothing expires, nothing hangs. Needs a C compiler."""
    if shutil.which("cc") is None:
        raise NotProvenError("there is no C compiler to build the clock's shim")
    shim, clock = s.root / "clock.so", s.root / "clock"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(shim), str(SHIM), "-ldl"], check=True)
    clock.write_bytes(struct.pack("l", 0))
    s.start(environment={"LD_PRELOAD": str(shim), "FAULTS_CLOCK_FILE": str(clock)})
    for jump in (JUMP_SECONDS, -JUMP_SECONDS):
        rule = s.stub.add(Fault(method="PUT", key=CHUNKS, delay=0.5))
        s.engine.store(4)
        with clock.open("r+b") as file:
            file.write(struct.pack("l", jump))
        expect(s.engine.settle(), STORED)
        s.stub.remove(rule)
        keys = s.engine.stored(4)
        s.engine.load(keys)
        expect(s.engine.settle(), LOADED)
        stamp = s.stub.requests("GET", CHUNKS)[-1].headers["x-amz-date"]
        signed = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        ahead = (signed - datetime.now(UTC)).total_seconds()
        s.prove(abs(ahead - jump) < 60, f"requests signed {ahead:+.0f} s off")
    s.over()


@fault("F75", KIND, "keys expire, new ones come in the file", store="stub", started=False)
def keys_expire(s: Scenario) -> None:
    """Refused with the old key, then a new agent generation with the new one: no job is lost."""
    file = s.root / "credentials"

    def give(key: str) -> None:
        text = f"[default]\naws_access_key_id = {key}\naws_secret_access_key = made-up-{key}\n"
        fresh = file.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(file)

    give("old")
    variables = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    s.start(environment=variables | {"AWS_SHARED_CREDENTIALS_FILE": str(file)})
    keys = s.engine.stored(4)
    s.stub.add(Fault(status=400, code="ExpiredToken", access_key="new"))
    s.engine.store(4)
    s.engine.load(keys)
    wait_for(lambda: s.answered("PUT", 400) or s.answered("GET", 400), "a refused key")
    give("new")
    s.over()
    expect(s.engine.settle(), STORED, LOADED)
    refused = s.answered("PUT", 400) + s.answered("GET", 400)
    s.prove(refused, f"{refused} requests with the old key refused")
    used = s.stub.requests("PUT", CHUNKS)[-1].headers["authorization"]
    s.prove("Credential=new/" in used, "the last PUT is signed with the new key")


@fault("F76", KIND, "the store's directory is removed", store="file")
def directory_removed(s: Scenario) -> None:
    """Loads are misses; stores make what they need again or fail; nothing is wrong."""
    keys = s.engine.stored(4)
    shutil.rmtree(s.directory.view)
    s.prove(not s.directory.view.exists(), "the directory is gone")
    s.engine.load(keys)
    expect(s.engine.settle(), Outcome.MISSING, UNAVAILABLE)
    s.engine.store(4)
    expect(s.engine.settle(), STORED, UNAVAILABLE, Outcome.SHED)
    s.directory.view.mkdir(exist_ok=True)
    s.over()


@fault("F77", KIND, "a byte of a file flips on the disk", store="file", gate=True)
def bit_rot(s: Scenario) -> None:
    """CORRUPT, never loaded; the next store overwrites."""
    keys = s.engine.stored(4)
    for path in s.directory.view.rglob("*.bin"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    right = [data for data in s.backing.objects().values() if data in map(content_of, keys)]
    s.prove(not right, "one bit flipped in each of 4 files")
    s.engine.load(keys)
    expect(s.engine.settle(), Outcome.CORRUPT)
    s.engine.store_keys(keys)
    expect(s.engine.settle(), STORED)
    s.over()
