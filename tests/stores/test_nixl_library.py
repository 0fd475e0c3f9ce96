"""The library's rules: its environment, its errors, its exit, and what a handle may touch."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time

import pytest

from tests.support.fault_server import FaultServer
from tests.support.processes import clean_environment

GUARD_SECONDS = 60


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=clean_environment(variables),
        capture_output=True,
        text=True,
        timeout=GUARD_SECONDS,
        check=False,
    )


REQUIRE = """
    from kvferry_server.adapters.nixl_library import require_plugin
    from kvferry_server.core.errors import ConfigError
    try:
        require_plugin({plugin!r})
    except ConfigError as error:
        print(error.field, error.message)
        raise SystemExit(2)
"""


@pytest.mark.parametrize("plugin", ["OBJ", "POSIX"])
def test_N04_a_missing_plugin_is_one_clear_line(tmp_path, plugin):
    began = time.monotonic()
    done = python(REQUIRE.format(plugin=plugin), NIXL_PLUGIN_DIR=str(tmp_path))
    assert time.monotonic() - began < 20
    assert done.returncode == 2
    assert len(done.stdout.splitlines()) == 1
    assert plugin in done.stdout
    assert f"NIXL_PLUGIN_DIR={tmp_path}" in done.stdout


def test_N04_a_missing_package_says_how_to_install_it_without_torch():
    block = "import sys; sys.modules['nixl_cu12'] = None\n" + textwrap.dedent(
        REQUIRE.format(plugin="OBJ")
    )
    done = python(block)
    assert done.returncode == 2
    assert "pip install --no-deps" in done.stdout
    assert "nixl-cu12" in done.stdout
    assert "torch" in done.stdout


def test_a_broken_configuration_file_of_nixl_is_named(tmp_path):
    broken = tmp_path / "nixl.cfg"
    broken.write_text("[[[")
    done = python(REQUIRE.format(plugin="OBJ"), NIXL_CONFIG_FILE=str(broken))
    assert done.returncode == 2
    assert len(done.stdout.splitlines()) == 1
    assert str(broken) in done.stdout


def test_N04_a_healthy_library_is_silent():
    done = python(REQUIRE.format(plugin="OBJ"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_sdk_is_told_to_try_once_and_boto3_is_not():
    done = python(
        """
        import ctypes, logging, os
        from kvferry_server.adapters.nixl_library import require_plugin
        require_plugin("OBJ")
        getenv = ctypes.CDLL(None).getenv
        getenv.restype = ctypes.c_char_p
        print(getenv(b"AWS_RETRY_MODE"), getenv(b"AWS_MAX_ATTEMPTS"))
        print(os.environ["AWS_RETRY_MODE"], os.environ["AWS_MAX_ATTEMPTS"])
        print(logging.raiseExceptions, logging.getLogger("nixl").handlers)
        """,
        AWS_RETRY_MODE="adaptive",
        AWS_MAX_ATTEMPTS="7",
    )
    assert done.stdout.splitlines() == ["b'standard' b'1'", "adaptive 7", "True []"], done.stderr


STORE_ONE = """
    import pathlib, threading
    from kvferry_server.adapters.integrity import ChecksumCatalog, Integrity
    from kvferry_server.adapters.nixl_file_store import FileObjectStore
    from kvferry_server.adapters.nixl_object_store import S3ObjectStore
    from kvferry_server.adapters.s3_rotation import KeySource
    from kvferry_server.adapters.s3_types import Credentials, Dialect, PreflightResult, S3Settings
    from kvferry_server.core.ports import Preflight
    from kvferry_server.core.types import JobKind

    class Inquiry:
        keys_refused = False

        def close(self):
            pass

    rules = Integrity(ChecksumCatalog())
    if {endpoint!r}:
        ready = PreflightResult(Preflight(True, "", "", ()), Dialect(), Credentials("k", "s"))
        store = S3ObjectStore(
            S3Settings("kvferry-test", "n05", {endpoint!r}),
            preflight=lambda _: ready,
            inquiry=lambda *_: Inquiry(),
            integrity=rules,
            keys=KeySource(lambda: ready.credentials),
        )
    else:
        store = FileObjectStore(pathlib.Path({root!r}), integrity=rules)
    assert store.preflight().ready
    ended = threading.Event()

    def done(status):
        print(status.name)
        ended.set()

    store.transfer(JobKind.STORE, "a", memoryview(bytearray(1 << 16)), done)
    assert ended.wait(30)
    if {close}:
        store.close()
"""


@pytest.mark.parametrize(("close", "times"), [(True, 20), (False, 5)])
def test_N05_a_clean_exit_each_time(close, times):
    with FaultServer() as server:
        code = STORE_ONE.format(endpoint=server.endpoint_url, root="", close=close)
        for _ in range(times):
            done = python(code)
            assert (done.returncode, done.stdout) == (0, "OK\n"), done.stderr


@pytest.mark.parametrize("close", [True, False])
def test_N05_a_clean_exit_of_the_file_store(tmp_path, close):
    root = tmp_path / "store"
    code = STORE_ONE.format(endpoint="", root=str(root), close=close)
    for _ in range(3):
        done = python(code)
        assert (done.returncode, done.stdout) == (0, "OK\n"), done.stderr
    assert (root / "a").stat().st_size == 1 << 16
