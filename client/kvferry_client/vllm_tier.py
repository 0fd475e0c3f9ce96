"""The vLLM side: a secondary tier behind vLLM's CPU tier. Imports vllm; nothing else here does.

Memory: vLLM hands over a memoryview of the CPU tier's region; only its descriptor leaves
this process. Failure: no method raises, blocks or logs per call whatever the daemon does
(`drain_jobs` and `shutdown` may block); a wrong config raises ValueError at engine start, an
absent daemon does not. Threading: called under the manager's lock from varying threads.

Config, in `secondary_tiers`: {"type": "kvferry", "socket_dir": "/run/kvferry", ...}; without
the plugin entry point also "module_path": "kvferry_client.vllm_tier".
"""

from __future__ import annotations

import functools
import logging
import os
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingEvent,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
    OffloadKey,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from kvferry_client import tier_config, tier_metrics, vllm_compat
from kvferry_client.client import Client
from kvferry_client.collector import uncollected
from kvferry_client.connection import client_version
from kvferry_client.forks import in_child
from kvferry_client.identity import Identity
from kvferry_client.tier import FinishedJob, TierLogic, Verdict
from kvferry_client.types import ClientState, JobKind, RequestContext
from kvferry_client.vllm_lora import hash_adapters_by_content

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SHUTDOWN_SECONDS: Final = 2.0
"""vLLM kills an engine that takes some 5 s to shut down."""
MAX_ENGINE_ID_CHARS: Final = 128
TRANSFER_PARAM_PREFIX: Final = "kvferry."
"""Only kv_transfer_params that begin so reach the daemon."""
PRIORITY_PARAM: Final = "kvferry.priority"
"""A whole number, lower runs earlier; vLLM does not tell a tier its own priority."""

logger = logging.getLogger("kvferry_client")
logger.parent = logging.getLogger("vllm")  # vLLM configures handlers on its own logger only.

_ATTACHED: Final = tier_metrics.PREFIX + tier_metrics.ATTACHED
_LOOKUP_SECONDS: Final = tier_metrics.PREFIX + tier_metrics.LOOKUP_SECONDS
_VERDICTS: Final = {
    Verdict.HIT: LookupResult.HIT,
    Verdict.MISS: LookupResult.MISS,
    Verdict.RETRY: LookupResult.RETRY,
}
_Method = TypeVar("_Method", bound="Callable[..., Any]")


def _contained(fallback: Callable[..., Any]) -> Callable[[_Method], _Method]:
    """Keep a bug of ours from killing the engine: log it once per method, use the fallback."""

    def wrap(method: _Method) -> _Method:
        @functools.wraps(method)
        def contained(self: KVFerrySecondaryTierManager, *args: Any) -> Any:  # noqa: ANN401 - any signature
            try:
                return method(self, *args)
            except Exception as error:  # noqa: BLE001 - a raise here kills the engine (J01)
                self._note_fault(method.__name__, error)
                return fallback(self, *args)

        return contained  # type: ignore[return-value]

    return wrap


class KVFerrySecondaryTierManager(SecondaryTierManager):  # type: ignore[misc]
    """Stores and loads chunks through a kvferry daemon; see the module's docstring."""

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,  # noqa: ANN401 - OffloadingSpec, of any supported version
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,  # noqa: ANN401 - exists from 0.31 on
        **options: Any,  # noqa: ANN401 - JSON
    ) -> None:
        """Prepare the tier and connect in the background.

        Raises ValueError for a config that can't be meant.
        """
        base_options = vllm_compat.base_options(backpressure_detector)
        super().__init__(offloading_spec, primary_kv_view, tier_type, **base_options)
        config, warnings = tier_config.parse(options)
        for warning in warnings:
            logger.warning("%s", warning)
        self.locality = Locality(config.locality) if config.locality is not None else None
        self._events: list[OffloadingEvent] | None = None
        if config.enable_kv_events:
            self._enable_events(offloading_spec, tier_type)
        self._faults: set[str] = set()
        self._context = RequestContext()
        self._seed_checked = False
        self._begin()
        spec_config = offloading_spec.config
        self._keeps_epoch = config.after_reset == "keep"
        stride = primary_kv_view.strides[0] if primary_kv_view.strides else 0
        self._identity = Identity(
            spec_config, config, stride, vllm_compat.vllm_namespace(offloading_spec)
        )
        hash_adapters_by_content()
        self._client = Client(
            config.socket_dir,
            primary_kv_view,
            namespace=self._identity.namespace,
            vllm_namespace=self._identity.vllm_namespace,
            engine_id=str(spec_config.engine_id)[:MAX_ENGINE_ID_CHARS] or "vllm",
            lookup_timeout_s=float(config.lookup_timeout_s),
        )
        self._logic = TierLogic(self._client)
        self._logic.start()
        in_child(self, KVFerrySecondaryTierManager._begin)

    def _begin(self) -> None:
        """Have nothing to report; in a forked child too, whose client counts from 0 again."""
        self._failed_submissions: list[JobResult] = []
        self._reported: dict[str, int] = {}
        self._attached: bool | None = None
        if self._events is not None:
            self._events = []

    @uncollected
    @_contained(lambda _self, *_args: LookupResult.MISS)
    def lookup(self, key: OffloadKey, req_context: Any) -> LookupResult:  # noqa: ANN401
        """Tell whether a chunk is in the object store; RETRY until the daemon has answered."""
        context = self._context_of(req_context)
        position = vllm_compat.key_position(req_context, key)
        return _VERDICTS[self._logic.lookup(bytes(key), context, position)]

    @uncollected
    @_contained(lambda self, job: self._fail_submission(job))
    def submit_store(self, job_metadata: Any) -> None:  # noqa: ANN401 - the type's name varies
        """Queue a store."""
        context = self._context_of(job_metadata.req_context)
        self._logic.submit_store(job_metadata.job_id, *vllm_compat.chunks(job_metadata), context)

    @uncollected
    @_contained(lambda self, job: self._fail_submission(job))
    def submit_load(self, job_metadata: Any) -> None:  # noqa: ANN401 - the type's name varies
        """Queue a load."""
        context = self._context_of(job_metadata.req_context)
        self._logic.submit_load(job_metadata.job_id, *vllm_compat.chunks(job_metadata), context)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Return the jobs that ended since the last call, each exactly once.

        vLLM asks in every step, and most of the time nothing has ended: that costs least.
        """
        if self._client.has_news or self._failed_submissions or self._logic.waiting:
            return self._take_finished()
        return ()

    @uncollected
    @_contained(lambda _self: True)
    def has_pending_work(self) -> bool:
        """Keep the engine stepping while jobs or lookups are open."""
        return bool(self._failed_submissions) or self._logic.has_pending_work()

    @uncollected
    def take_events(self) -> Iterable[OffloadingEvent]:
        """Return events for chunks that were stored since the last call."""
        events = self._events or []
        if events:
            self._events = []
        return events

    @uncollected
    @_contained(lambda _self, *_args: RequestOffloadingContext())
    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:  # noqa: ANN401
        """Offload chunk by chunk, vLLM's default."""
        del req_context
        if not self._seed_checked:
            self._seed_checked = True
            warning = hash_seed_warning(os.environ)
            if warning:
                logger.warning("%s", warning)
        return RequestOffloadingContext()

    @uncollected
    @_contained(lambda _self, *_args: None)
    def on_request_finished(self, req_context: Any) -> None:  # noqa: ANN401
        """Forget the request's verdicts; its jobs go on."""
        self._logic.finish_request(req_context.req_id)

    def on_schedule_end(self, context: Any) -> None:  # noqa: ANN401
        """Send the step's lookups."""
        del context
        if self._logic.waiting:
            self._send_lookups()

    @_contained(lambda _self: None)
    def drain_jobs(self) -> None:
        """Block until nothing touches the region for a job any more; then begin a new epoch.

        vLLM calls this in `reset_cache` only: when the engine sleeps and when weights change.
        """
        self._logic.drain()
        if not self._keeps_epoch:
            self._identity.begin_epoch()
            logger.warning(
                "the KV cache was reset, so the weights may have changed: kvferry begins a new "
                'cache epoch, and a daemon with naming "vllm" is not used any more; set '
                "'after_reset' to \"keep\" if this engine's weights never change"
            )
            self._client.change_namespace(self._identity.namespace, self._identity.vllm_namespace)

    @_contained(lambda _self: None)
    def shutdown(self) -> None:
        """End the session, waiting briefly for the daemon to let go of the region."""
        if not self._logic.shutdown(SHUTDOWN_SECONDS):
            logger.warning("kvferry still holds the region after %.0f s", SHUTDOWN_SECONDS)

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        """Declare every metric that `get_stats` may report."""
        del extra_config
        definitions: dict[str, Any] = {
            tier_metrics.PREFIX + name: OffloadingCounterMetadata(
                documentation=metric.documentation, labelnames=metric.label_names
            )
            for name, metric in tier_metrics.COUNTERS.items()
        }
        definitions[_ATTACHED] = OffloadingGaugeMetadata(
            documentation=tier_metrics.ATTACHED_DOCUMENTATION
        )
        definitions[_LOOKUP_SECONDS] = OffloadingHistogramMetadata(
            documentation=tier_metrics.LOOKUP_SECONDS_DOCUMENTATION,
            buckets=tier_metrics.LOOKUP_BUCKETS,
        )
        return definitions

    @classmethod
    def config_info_keys(cls, tier_config: dict[str, Any]) -> tuple[str, ...]:
        """Name the labels of `config_info`; vLLM asks from 0.33 on."""
        del tier_config
        return tier_metrics.CONFIG_INFO

    @_contained(lambda _self: {})
    def config_info(self) -> dict[str, str]:
        """Return this tier's facts: version and namespace at the start."""
        values = (client_version(), self._identity.namespace)
        return dict(zip(tier_metrics.CONFIG_INFO, values, strict=True))

    @uncollected
    @_contained(lambda _self: None)
    def get_stats(self) -> OffloadingConnectorStats | None:
        """Return what changed since the last call; at first every series, at 0 or more."""
        totals = self._client.counters
        attached = self._client.state is ClientState.ATTACHED
        times = self._logic.lookup_seconds
        if totals == self._reported and attached is self._attached and not times:
            return None
        stats = OffloadingConnectorStats()
        for counter, (metric, labels) in tier_metrics.SERIES.items():
            before = self._reported.get(counter)
            if totals[counter] != before:
                stats.increase_counter(metric, totals[counter] - (before or 0), labels)
        stats.set_gauge(_ATTACHED, int(attached))
        if self._attached is None:
            stats.observe_histogram(_LOOKUP_SECONDS, 0.0)
            stats.data["data"][_LOOKUP_SECONDS][()].clear()  # There from the start, and empty.
        while times:
            stats.observe_histogram(_LOOKUP_SECONDS, times.popleft())
        self._reported, self._attached = totals, attached
        return stats

    @uncollected
    def _take_finished(self) -> list[JobResult]:
        failed, self._failed_submissions = self._failed_submissions, []
        return [*failed, *self._finished()]

    @uncollected
    @_contained(lambda _self: None)
    def _send_lookups(self) -> None:
        self._logic.flush()

    @_contained(lambda _self: [])
    def _finished(self) -> list[JobResult]:
        finished = self._logic.finished()
        if self._events is not None:
            self._add_events(finished)
        return [vllm_compat.job_result(job) for job in finished]

    @_contained(lambda _self, _jobs: None)
    def _add_events(self, finished: list[FinishedJob]) -> None:
        stored = [job for job in finished if job.kind is JobKind.STORE and job.good_keys]
        self._events = (self._events or []) + [
            OffloadingEvent(
                keys=[OffloadKey(key) for key in job.good_keys],
                medium=self.medium,
                removed=False,
                locality=self.locality,
            )
            for job in stored
        ]

    def _context_of(self, req_context: Any) -> RequestContext:  # noqa: ANN401
        if self._context.request_id != req_context.req_id:
            self._context = _request_context(req_context)
        return self._context

    def _enable_events(self, spec: Any, tier_type: str) -> None:  # noqa: ANN401
        if spec.kv_events_config.enable_kv_cache_events:
            self._events = []
        else:
            logger.warning(
                "enable_kv_events is set on tier %r, but KV cache events are disabled globally: "
                "it emits none",
                tier_type,
            )

    def _fail_submission(self, job: Any) -> None:  # noqa: ANN401
        self._failed_submissions.append(JobResult(job_id=job.job_id, success=False))

    def _note_fault(self, method: str, error: Exception) -> None:
        if method not in self._faults:
            self._faults.add(method)
            logger.error(
                "kvferry's tier failed in %s; further failures there are not logged",
                method,
                exc_info=error,
            )


kvferry = KVFerrySecondaryTierManager
"""So that {"type": "kvferry", "module_path": "kvferry_client.vllm_tier"} works too."""


def hash_seed_warning(environment: os._Environ[str] | dict[str, str]) -> str:
    """Return a warning if block hashes differ from start to start, else "". Call once serving."""
    if environment.get("PYTHONHASHSEED"):
        return ""
    default = getattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED", None)
    seed = getattr(kv_cache_utils, "get_none_hash_seed", lambda: "")()
    if default is not None and seed == default:
        return ""
    return (
        "vLLM's block hashes are random in each process, so nothing that kvferry stores will be "
        "found after a restart: set PYTHONHASHSEED to a fixed value, or use the sha256 hash"
    )


def _request_context(req_context: Any) -> RequestContext:  # noqa: ANN401
    params = req_context.kv_transfer_params or {}
    allowed = tuple(
        (name, str(value))
        for name, value in params.items()
        if name.startswith(TRANSFER_PARAM_PREFIX) and isinstance(value, str | int | float)
    )
    priority = params.get(PRIORITY_PARAM, 0)
    return RequestContext(req_context.req_id, priority if isinstance(priority, int) else 0, allowed)
