"""`python -m kvferry_server.cli.reference`: docs/configuration.md from the options.

Imports `options` only.
"""

from __future__ import annotations

import sys
from dataclasses import MISSING, Field, fields
from typing import Any

from .option import Option
from .options import Config, all_options

_HEAD = """\
# Configuration

<!-- Made by `python -m kvferry_server.cli.reference`; change the options' dataclasses instead. -->

Each option is looked for in this order: command-line flag, environment variable, TOML file,
default. The file is the one that `--config` or `KVFERRY_CONFIG` names, else
`/etc/kvferry/config.toml` for root or `$XDG_CONFIG_HOME/kvferry/config.toml` for other users,
if it exists. A whole file can be as short as this:

```toml
[store]
url = "s3://bucket/prefix"
```

* An unknown key or a value of a wrong type or range is an error: exit status 2, with the key,
  the file and the line.
* An empty environment variable counts as unset, but for `KVFERRY_HTTP_LISTEN`, where it
  switches the listener off.
* Any other variable that starts with `KVFERRY_` is warned about, except those that Kubernetes
  sets for a Service called `kvferry`.
* Credentials are never configured here and are refused. They, the region, the endpoint and the
  CA bundle come from AWS's own variables and files: `AWS_PROFILE`, `AWS_REGION`,
  `AWS_ENDPOINT_URL_S3`, `AWS_CA_BUNDLE`, `~/.aws/credentials`, a web identity, ...
* Times are in seconds and sizes in bytes, as plain numbers.
* The state directory is `/var/lib/kvferry` for root and `$XDG_STATE_HOME/kvferry` for other users,
  `~/.local/state/kvferry` where that variable is unset.
* `kvferry serve --debug-attach-by-name` is a flag only: it lets clients attach shared memory by
  name over gRPC, for debugging.
"""


def render() -> str:
    """The whole document."""
    parts = [_HEAD]
    for table in fields(Config):
        group = [(spec, option) for owner, spec, option in all_options() if owner is table]
        title = (table.default_factory.__doc__ or "").strip()
        parts.append(f"\n## `[{table.name}]`\n\n{title}\n")
        parts.extend(_entry(spec, option) for spec, option in group)
    return "".join(parts)


def _entry(spec: Field[Any], option: Option) -> str:
    facts = [_kind(spec, option), f"default {_default(spec, option)}"]
    if option.env:
        facts.append(f"variable `{option.env}`")
    if option.flag:
        facts.append(f"flag `{option.flag}`")
    return f"\n* **`{spec.name}`**: {'; '.join(facts)}.\n  {option.doc}\n"


def _kind(spec: Field[Any], option: Option) -> str:
    if option.choices:
        return "one of " + ", ".join(f'`"{choice}"`' for choice in option.choices)
    if spec.type in {"str", "bool"}:
        return {"str": "string", "bool": "`true` or `false`"}[spec.type]
    if spec.type.startswith("tuple[tuple"):
        return "table of numbers and names"
    if spec.type.startswith("tuple"):
        return "list of whole numbers"
    number = "whole number" if spec.type == "int" else "number"
    unit = f" {option.unit}" if option.unit else ""
    return f"{number}, {option.minimum:,} to {option.maximum:,}{unit}"


def _default(spec: Field[Any], option: Option) -> str:
    if option.default_doc:
        return option.default_doc
    if spec.default is MISSING:
        raise TypeError(f"{spec.name} has no default")
    if isinstance(spec.default, bool):
        return f"`{str(spec.default).lower()}`"
    if isinstance(spec.default, str):
        return f'`"{spec.default}"`'
    return f"`{spec.default:_}`"


if __name__ == "__main__":
    sys.stdout.write(render())
