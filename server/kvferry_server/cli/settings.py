"""The configuration of one command: its flags, this process's environment and user.

Imports `config` only.
"""

from __future__ import annotations

import argparse
import os

from .config import ARGUMENT, Loaded, load
from .options import all_options


def load_settings(args: argparse.Namespace) -> Loaded:
    """The configuration as this command's flags, the environment and the file say.

    Raises:
        ConfigError: a source can't be read, or a value is wrong.
    """
    names = ["--config", *(option.flag for _, _, option in all_options() if option.flag)]
    flags = {ARGUMENT: getattr(args, "url", None)} | {
        name: getattr(args, name[2:].replace("-", "_"), None) for name in names
    }
    return load(flags, os.environ, os.geteuid())
