"""The only entry to NIXL.

Owns: loading `nixl_cu12` in the right environment, agents with exactly one backend, one-chunk
transfer handles, and existence queries. Nothing else imports NIXL; callers see plain Python types
and the two exceptions below. Imports core and `nixl_steps`.

Rules that NIXL does not enforce and this file does (measured with 1.5.1):

* Its S3 SDK reads its retry settings when it starts. One attempt per request: a retried GET would
  put an error body into the slot. They are set with libc's `setenv`, not in `os.environ`, so that
  boto3 in this process keeps its own retries.
* One handle moves one chunk. A handle with several reports an error while the others still run.
* A handle is released, and its memory deregistered, only when it is no longer running.
* Device ids name objects per backend and the last registration wins: they are unique per process.

Threads: an agent may be used by several threads, a handle by one.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, unique
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from kvferry_server.core.errors import ConfigError
from kvferry_server.core.types import JobKind

from .nixl_steps import Move

Plugin = Literal["OBJ", "POSIX"]

REQUESTS_PER_AGENT = 25
"""Requests that one OBJ backend really runs at once; more threads change nothing."""

_SEGMENT: dict[Plugin, str] = {"OBJ": "OBJ", "POSIX": "FILE"}
_OPERATION = {JobKind.STORE: "WRITE", JobKind.LOAD: "READ"}
_SDK_ENVIRONMENT = {"AWS_RETRY_MODE": "standard", "AWS_MAX_ATTEMPTS": "1"}
_INSTALL_HINT = (
    "install it without torch, which kvferry does not need: "
    'pip install --no-deps "nixl-cu12>=1.5.1,<2" && pip install numpy'
)

_device_ids = itertools.count(1)
_agent_numbers = itertools.count(1)
_live_handles: set[Handle] = set()
_load_lock = threading.Lock()
_loaded: _Nixl | None = None


class NixlFault(Exception):
    """NIXL refused a call that can't fail in a healthy process."""


class QueryFailed(Exception):
    """At least one key of an existence query failed; NIXL does not say which, or why."""


@unique
class MoveState(Enum):
    """Where a transfer stands."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """Over, without success: nothing touches the slot any more."""


@dataclass(frozen=True, slots=True)
class _Nixl:
    """The loaded library."""

    api: ModuleType
    backend_error: type[Exception]
    errors: tuple[type[Exception], ...]


@dataclass(slots=True, eq=False)
class Handle:
    """One running transfer: NIXL's request and what was registered for it."""

    request: Any
    registered: list[Any]
    state: MoveState


class NixlAgent:
    """One NIXL agent with one backend.

    Args:
        plugin: OBJ moves objects of one bucket, POSIX moves open files.
        params: the backend's settings; they may hold secrets and are not kept here.

    Raises:
        ConfigError: the package or the plugin is missing; the text says what to install or unset.
        NixlFault: the backend can't be created.
    """

    def __init__(self, plugin: Plugin, params: Mapping[str, str]) -> None:
        self._nixl = _load()
        self._plugin: Plugin = plugin
        self._name = f"kvferry-{next(_agent_numbers)}"
        self._agent = _bare_agent(self._nixl, self._name)
        if plugin not in self._agent.get_plugin_list():
            raise _plugin_missing(plugin)
        try:
            self._agent.create_backend(plugin, dict(params))
        except self._nixl.errors as error:
            raise NixlFault(
                f"NIXL can't create a backend of its {plugin} plugin: {error}"
            ) from error

    def start(self, move: Move) -> Handle:
        """Register the slot and the target, and post the transfer.

        A transfer that NIXL refuses comes back FAILED, with nothing left registered or running.

        Raises:
            NixlFault: registration failed; nothing is left registered or running.
        """
        length = move.buffer.nbytes
        address = _address(move.buffer)
        device = next(_device_ids) if isinstance(move.target, str) else move.target
        key = move.target if isinstance(move.target, str) else ""
        memory = next(_device_ids)
        handle = Handle(request=None, registered=[], state=MoveState.RUNNING)
        try:
            self._register(handle, (0, length, device, key), _SEGMENT[self._plugin])
            self._register(handle, (address, length, memory, ""), "DRAM")
            handle.request = self._agent.initialize_xfer(
                _OPERATION[move.kind],
                self._agent.get_xfer_descs([(address, length, memory)], "DRAM"),
                self._agent.get_xfer_descs([(0, length, device)], _SEGMENT[self._plugin]),
                self._name,
                backends=[self._plugin],
            )
            _live_handles.add(handle)
            posted = self._agent.transfer(handle.request)
        except self._nixl.errors as error:
            self.finish(handle)
            if isinstance(error, self._nixl.backend_error):
                handle.state = MoveState.FAILED
                return handle
            raise NixlFault(f"NIXL refused a transfer: {error}") from error
        handle.state = _STATES[posted]
        return handle

    def state(self, handle: Handle) -> MoveState:
        """Where the transfer stands.

        Raises:
            NixlFault: NIXL can't tell; the transfer must be taken to be running for ever.
        """
        if handle.state is MoveState.RUNNING:
            try:
                handle.state = _STATES[self._agent.check_xfer_state(handle.request)]
            except self._nixl.backend_error:
                handle.state = MoveState.FAILED
            except self._nixl.errors as error:
                raise NixlFault(f"NIXL lost track of a transfer: {error}") from error
        return handle.state

    def finish(self, handle: Handle) -> None:
        """Release a transfer that is over. A second call does nothing.

        Raises:
            NixlFault: NIXL refused; the rest is released.
        """
        problems: list[str] = []
        if handle.request is not None:
            try:
                self._agent.release_xfer_handle(handle.request)
                _live_handles.discard(handle)
            except self._nixl.errors as error:
                problems.append(str(error))
            handle.request = None
        while handle.registered:
            try:
                self._agent.deregister_memory(handle.registered.pop(), [self._plugin])
            except self._nixl.errors as error:
                problems.append(str(error))
        if problems:
            raise NixlFault(f"NIXL did not release a transfer: {'; '.join(problems)}")

    def present(self, keys: Sequence[str]) -> list[bool]:
        """Blocking: which objects exist, in order.

        Raises:
            QueryFailed: the answer for at least one of them is not known.
        """
        descriptors = [(0, 0, next(_device_ids), key) for key in keys]
        try:
            answers = self._agent.query_memory(descriptors, self._plugin, _SEGMENT[self._plugin])
        except self._nixl.errors as error:
            raise QueryFailed(str(error)) from error
        return [answer is not None for answer in answers]

    def close(self) -> None:
        """Destroy the agent; all its handles must be finished."""
        self._agent = None

    def _register(
        self, handle: Handle, descriptor: tuple[int, int, int, str], segment: str
    ) -> None:
        handle.registered.append(
            self._agent.register_memory([descriptor], segment, backends=[self._plugin])
        )


_STATES = {"PROC": MoveState.RUNNING, "DONE": MoveState.DONE, "ERR": MoveState.FAILED}


def live_handles() -> int:
    """Transfer handles of this process that NIXL has not released."""
    return len(_live_handles)


def require_plugin(plugin: Plugin) -> None:
    """Check that NIXL and one of its plugins are there, without connecting to anything.

    Raises:
        ConfigError: one of them is missing; the text says what to install or unset.
    """
    agent = _bare_agent(_load(), f"kvferry-{next(_agent_numbers)}")
    if plugin not in agent.get_plugin_list():
        raise _plugin_missing(plugin)


def name_region(region: str) -> None:
    """Tell the S3 SDK a region, unless the environment does: it asks instance metadata else.

    Where nobody answers that takes 2 s for each agent, though an agent's own region is what counts.
    To be called before the first agent is made, and like all of the SDK's settings for libc only.
    """
    ctypes.CDLL(None).setenv(b"AWS_REGION", region.encode(), 0)


def _bare_agent(nixl: _Nixl, name: str) -> Any:  # noqa: ANN401 - NIXL ships no types
    config = nixl.api.nixl_agent_config(
        enable_prog_thread=False,
        backends=[],
        sync_mode=nixl.api.nixl_thread_sync_t.NIXL_THREAD_SYNC_RW,
    )
    try:
        return nixl.api.nixl_agent(name, config)
    except RuntimeError as error:
        if "No plugins available" in str(error):
            raise _plugin_missing("OBJ and POSIX") from error
        raise ConfigError(
            f"NIXL can't start ({error}): correct its file, NIXL_CONFIG_FILE or HOME",
            reason="NIXL_CONFIG",
            field="NIXL_CONFIG_FILE",
        ) from error


def _plugin_missing(plugin: str) -> ConfigError:
    folder = os.environ.get("NIXL_PLUGIN_DIR")
    where = f"NIXL_PLUGIN_DIR={folder}: unset it" if folder else f"this nixl-cu12: {_INSTALL_HINT}"
    return ConfigError(
        f"NIXL's plugin {plugin} is not in {where}",
        reason="NIXL_PLUGIN_MISSING",
        field="NIXL_PLUGIN_DIR" if folder else "store.url",
    )


def _load() -> _Nixl:
    global _loaded  # noqa: PLW0603 - the library is one per process
    with _load_lock:
        if _loaded is None:
            _loaded = _import()
        return _loaded


def _import() -> _Nixl:
    libc = ctypes.CDLL(None)
    for name, value in _SDK_ENVIRONMENT.items():
        libc.setenv(name.encode(), value.encode(), 1)
    # Each failed request would be an error line on stderr; failures are reported as statuses.
    libc.setenv(b"NIXL_LOG_LEVEL", b"FATAL", 0)
    home = os.environ.get("HOME")
    if home and not _may_look_at(Path(home, ".nixl.cfg")):
        libc.setenv(b"NIXL_CONFIG_FILE", b"/dev/null", 0)
    raise_exceptions = logging.raiseExceptions
    try:
        api = importlib.import_module("nixl_cu12._api")
        bindings = importlib.import_module("nixl_cu12._bindings")
    except ImportError as error:
        raise ConfigError(
            f"the package nixl-cu12 can't be imported ({error}); {_INSTALL_HINT}",
            reason="NIXL_MISSING",
            field="store.url",
        ) from error
    # On import NIXL sends its log to stdout and switches off logging.raiseExceptions.
    logging.raiseExceptions = raise_exceptions
    logger = logging.getLogger("nixl")
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.CRITICAL)
    errors = tuple(
        value
        for name, value in vars(bindings).items()
        if name.endswith("Error") and isinstance(value, type) and issubclass(value, Exception)
    )
    return _Nixl(api=api, backend_error=bindings.nixlBackendError, errors=errors)


def _may_look_at(path: Path) -> bool:
    """False where NIXL would refuse to start: another user's home, as under `docker --user`."""
    try:
        path.stat()
    except PermissionError:
        return False
    except OSError:
        return True
    return True


def _address(buffer: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
