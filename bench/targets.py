"""What kvferry promises of its speed: each figure, what it is compared with, and its bound.

The bounds are those that were set before anything was measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvferry_server.cli.pairs import Relation

CHUNK_SIZES = {256 << 10: "256 KiB", 1 << 20: "1 MiB", 8 << 20: "8 MiB", 32 << 20: "32 MiB"}
AT_MOST, AT_LEAST = Relation.AT_MOST, Relation.AT_LEAST


@dataclass(frozen=True, slots=True)
class Target:
    """One promise.

    Args:
        what: is measured.
        against: what it is divided by; empty for a figure that stands alone.
        relation: to the bound.
        bound: of the ratio, or of the figure in `unit`.
        unit: of a figure that stands alone.
    """

    what: str
    against: str
    relation: Relation
    bound: float
    unit: str = ""


OBJ = "in-process obj tier"
DIRECT = "NIXL direct, one batch"
BEST_CLIENT = "better of boto3 and obstore"
TARGETS: dict[str, Target] = {
    "scheduler-time": Target(
        "time on vLLM's scheduler thread, all calls of a run", OBJ, AT_MOST, 0.1
    ),
    "worst-call": Target("one call, CPU time of its thread, p99.9", OBJ, AT_MOST, 0.1),
    "engine-cpu": Target("CPU seconds per GB in the engine's process", OBJ, AT_MOST, 0.05),
    "obj-best": Target("MB/s at the best size and direction", OBJ, AT_LEAST, 1.15),
    "absent-default": Target(
        "512-key lookup, all absent, 20 ms: times faster", f"{OBJ}, 4 threads", AT_LEAST, 60.0
    ),
    "absent-best": Target(
        "512-key lookup, all absent, 20 ms: times faster", f"{OBJ}, 25 threads", AT_LEAST, 10.0
    ),
    "present-default": Target(
        "512-key lookup, all present, none known, 20 ms: times faster",
        f"{OBJ}, 4 threads",
        AT_LEAST,
        20.0,
    ),
    "present-best": Target(
        "512-key lookup, all present, none known, 20 ms: times faster",
        f"{OBJ}, 25 threads",
        AT_LEAST,
        4.0,
    ),
    "known": Target(
        "512-key lookup, all known to the daemon: times faster",
        f"{OBJ}, 4 threads",
        AT_LEAST,
        100.0,
    ),
    "flood": Target("load latency p99 during a flood of stores", "without", AT_MOST, 1.5),
    "rpc": Target("warm 64-key lookup RPC, p50", "bare gRPC echo of equal size", AT_MOST, 1.5),
    "rate-store": Target("4 KiB chunks stored, file store", "", AT_LEAST, 5000, "chunks/s"),
    "rate-load": Target("4 KiB chunks loaded, file store", "", AT_LEAST, 5000, "chunks/s"),
    "index": Target("memory of the index", "", AT_MOST, 150, "bytes/key"),
    "grow-sessions": Target("CPU per chunk, 8 sessions", "1 session", AT_MOST, 1.2),
    "grow-jobs": Target("CPU per chunk, all jobs at once", "one job at a time", AT_MOST, 1.2),
    "grow-keys": Target("CPU per chunk, 1,000,000 keys known", "1,000 keys", AT_MOST, 1.2),
    "first-token-miss": Target(
        "time to first token of a miss, real engine", "no secondary tier", AT_MOST, 1.05
    ),
    "start": Target("start to ready", "", AT_MOST, 1.5, "s"),
    "idle-memory": Target("resident memory, idle", "", AT_MOST, 150, "MB"),
    "idle-cpu": Target("CPU while idle", "", AT_MOST, 0.01, "cores"),
}
for _size, _name in CHUNK_SIZES.items():
    for _verb in ("store", "load"):
        TARGETS[f"obj-{_verb}-{_size}"] = Target(
            f"{_verb}, {_name} chunks, MB/s", OBJ, AT_LEAST, 1.0
        )
        TARGETS[f"direct-{_verb}-{_size}"] = Target(
            f"{_verb}, {_name} chunks, MB/s", DIRECT, AT_LEAST, 0.97
        )
        TARGETS[f"client-{_verb}-{_size}"] = Target(
            f"{_verb}, {_name} chunks, MB/s", BEST_CLIENT, AT_LEAST, 0.9
        )
        TARGETS[f"cpu-{_verb}-{_size}"] = Target(
            f"{_verb}, {_name} chunks, CPU s/GB in the daemon, checksums on",
            DIRECT,
            AT_MOST,
            1.2,
        )
