"""`kvferry serve`: the daemon.

Owns the order of its start: signals first, so that it can be stopped at any time, then the
configuration, the log, and last what takes time to load.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
from typing import NoReturn

from . import logs
from .settings import load_settings

_log = logging.getLogger(__name__)


def run(args: argparse.Namespace) -> NoReturn:
    """Serve until a signal. Does not return after a clean stop: the process ends with status 0.

    Raises:
        ConfigError: the configuration is wrong, or an address or socket can't be used.
        FailedPrecondition: another daemon has the socket directory.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: os._exit(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there are credentials to read anew
    if (args.log_format or os.environ.get("KVFERRY_LOG_FORMAT", "")).lower() == "json":
        logs.set_up("info", "json")  # so that even an error of the configuration is JSON
    loaded = load_settings(args)
    config = loaded.config
    logs.set_up(config.log.level, config.log.format)
    for warning in loaded.warnings:
        _log.warning("%s", warning)
    if loaded.file:
        _log.info("configuration file %s", loaded.file)

    from .wire import run_daemon  # noqa: PLC0415 loads much, and signals must work before

    run_daemon(config, debug_attach_by_name=args.debug_attach_by_name)
