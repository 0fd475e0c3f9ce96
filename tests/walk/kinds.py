"""What can't run where the tests run, why, and what looks at it instead; and what needs a network.

Every command of the documentation that no walk executes belongs to a kind of this table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """Commands that are not executed.

    Args:
        pattern: what such a line begins with, after `sudo` and variables.
        why: what is missing here.
        instead: the test that checks these commands otherwise.
        stand_in: what a walk runs in their place; `{socket_dir}` is the line's own.
    """

    pattern: str
    why: str
    instead: str
    stand_in: str = ""

    def fits(self, line: str) -> bool:
        """Whether a line is of this kind."""
        return re.match(rf"(?:sudo |\w+=\S+ )*(?:{self.pattern})", line) is not None


NOT_RUN = (
    Kind(
        "docker build",
        "no Docker here",
        "tests/image/run.py",  # the same Dockerfile, by buildah
    ),
    Kind(
        "docker (run|exec|volume)",
        "no Docker here; the image runs under bubblewrap, with the same user and mounts",
        "tests/walk/test_pages.py::test_options_of_docker_run_agree_with_the_compose_file",
    ),
    Kind(
        "docker compose",
        "no Docker here",
        "tests/deploy/test_compose.py::test_it_is_a_compose_file_by_the_specification",
    ),
    Kind(
        "kubectl",
        "no cluster here",
        "tests/deploy/test_kubernetes.py",
    ),
    Kind(
        "vllm serve",
        "needs a model and, as the pages show it, a GPU; `make e2e-vllm` runs vLLM on the CPU",
        "tests/repo/test_commands.py::check_tier",
        stand_in='"$ENGINE_PYTHON" -m kvferry_client.demo --socket-dir {socket_dir}',
    ),
    Kind(
        "curl --silent http://127.0.0.1:8000",
        "vLLM's own port",
        "tests/repo/test_vllm_guide.py::test_every_metric_exists",
    ),
    Kind(
        "make test",
        "it would run itself",
        "tests/repo/test_readme.py::test_the_two_commands_are_targets_and_the_first_one_works",
    ),
)

FETCHES = re.compile(
    r"(?:sudo )?(?:make (?:demo|wheel)|python3 -m venv|pip install|\S+/pip install|echo torch \|)"
)
"""Lines that build or install something; they need a network and are left to `make walk`."""


def kind_of(line: str) -> Kind | None:
    """The kind of a line that is not run; None if it is."""
    return next((kind for kind in NOT_RUN if kind.fits(line)), None)
