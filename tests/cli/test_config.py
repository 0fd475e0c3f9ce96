"""Precedence, refusals and texts of the configuration."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kvferry_server.cli.config import default_paths, load, parse_listen
from kvferry_server.cli.options import Config, all_options
from kvferry_server.core.errors import ConfigError
from kvferry_server.core.types import EngineSettings
from kvferry_server.service.settings import ServerSettings

USER = {"HOME": "/home/u", "XDG_RUNTIME_DIR": "/run/user/1000"}
SECRET = "AKIAMARKER/s3cr3tMarker"


def load_file(tmp_path: Path, text: str, environ: dict[str, str] | None = None):
    file = tmp_path / "config.toml"
    file.write_text(text)
    return load({"--config": str(file)}, environ or USER, 1000)


def refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_file(tmp_path, text)
    assert SECRET not in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value.message


def test_flag_beats_variable_beats_file_beats_default(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('[log]\nlevel = "error"\nformat = "json"\n')
    environ = {**USER, "KVFERRY_CONFIG": str(file), "KVFERRY_LOG_LEVEL": "warning"}
    assert load({}, USER, 1000).config.log.level == "info"
    assert load({"--config": str(file)}, USER, 1000).config.log.level == "error"
    assert load({}, environ, 1000).config.log.level == "warning"
    loaded = load({"--log-level": "debug"}, environ, 1000)
    assert loaded.config.log.level == "debug"
    assert loaded.config.log.format == "json"
    assert loaded.file == file


@pytest.mark.parametrize("about", [about for _, _, about in all_options() if about.env])
def test_each_variable_and_flag_sets_its_option(about):
    values = {
        "KVFERRY_STORE_URL": "s3://bucket/p",
        "KVFERRY_SOCKET_DIR": "/a/b",
        "KVFERRY_HTTP_LISTEN": "127.0.0.1:1",
        "KVFERRY_LOG_LEVEL": "error",
        "KVFERRY_LOG_FORMAT": "json",
        "KVFERRY_CATALOG_DIR": "/c",
    }
    value = values[about.env]

    def read(config: Config) -> str:
        return next(
            getattr(getattr(config, table.name), spec.name)
            for table, spec, other in all_options()
            if other is about
        )

    assert read(load({}, {**USER, about.env: value}, 1000).config) == value
    if about.flag:
        assert read(load({about.flag: value}, USER, 1000).config) == value


def test_the_catalogs_directory(tmp_path):
    """In the state directory unless told otherwise; empty, wherever that is said, means none."""

    def directory(file: str = "", environ: dict[str, str] = USER, uid: int = 1000) -> str:
        path = tmp_path / "config.toml"
        path.write_text(file)
        loaded = load({"--config": str(path)}, environ, uid)
        return loaded.config.integrity.catalog_directory

    none = '[integrity]\ncatalog_directory = ""\n'
    assert directory(uid=0) == "/var/lib/kvferry/catalog"
    assert directory(environ={**USER, "XDG_STATE_HOME": "/s"}) == "/s/kvferry/catalog"
    assert directory(none) == ""
    assert directory(environ={**USER, "KVFERRY_CATALOG_DIR": ""}) == ""
    assert directory(none, {**USER, "KVFERRY_CATALOG_DIR": "/c"}) == "/c"


def test_defaults_of_root_and_of_others():
    root = load({}, {}, 0).config
    assert (root.sockets.directory, root.store.url) == (
        "/run/kvferry",
        "file:///var/lib/kvferry/store",
    )
    other = load({}, USER, 1000).config
    assert other.sockets.directory == "/run/user/1000/kvferry"
    assert other.store.url == "file:///home/u/.local/state/kvferry/store"
    assert default_paths({"HOME": "/home/u"}, 1000).sockets == "/home/u/.local/state/kvferry/run"
    assert (
        default_paths({"HOME": "/h", "XDG_STATE_HOME": "x"}, 1).state == "/h/.local/state/kvferry"
    )
    assert default_paths({"XDG_CONFIG_HOME": "/c"}, 1).config == "/c/kvferry/config.toml"


def test_the_default_file_is_read_if_it_exists(tmp_path):
    environ = {"HOME": "/nowhere", "XDG_CONFIG_HOME": str(tmp_path)}
    assert load({}, environ, 1000).file is None
    (tmp_path / "kvferry").mkdir()
    (tmp_path / "kvferry/config.toml").write_text("[retry]\nmax_attempts = 2\n")
    assert load({}, environ, 1000).config.retry.max_attempts == 2


def test_a_named_file_must_exist(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.toml: No such file"):
        load({"--config": str(tmp_path / "absent.toml")}, USER, 1000)


def test_empty_variables_count_as_unset_but_for_the_listener():
    environ = {**USER, "KVFERRY_LOG_LEVEL": "", "KVFERRY_CONFIG": "", "KVFERRY_HTTP_LISTEN": ""}
    config = load({}, environ, 1000).config
    assert config.log.level == "info"
    assert config.http.listen == ""
    assert load({"--http-listen": "[::1]:80"}, environ, 1000).config.http.listen == "[::1]:80"


@pytest.mark.parametrize(
    "name",
    [
        "KVFERRY_PORT",
        "KVFERRY_SERVICE_HOST",
        "KVFERRY_SERVICE_PORT",
        "KVFERRY_SERVICE_PORT_HTTP_METRICS",
        "KVFERRY_PORT_9477_TCP",
        "KVFERRY_PORT_9477_TCP_ADDR",
        "KVFERRY_METRICS_SERVICE_HOST",
        "KVFERRY_METRICS_PORT_9477_TCP_PROTO",
    ],
)
def test_what_kubernetes_injects_for_a_service_is_ignored(name):
    loaded = load({}, {**USER, name: "tcp://10.0.0.1:9477"}, 1000)
    assert loaded.warnings == ()
    assert loaded.config == load({}, USER, 1000).config


def test_an_unknown_variable_is_warned_about_with_the_nearest_name():
    warnings = load({}, {**USER, "KVFERRY_STORE_URI": SECRET}, 1000).warnings
    assert len(warnings) == 1
    assert "KVFERRY_STORE_URI" in warnings[0]
    assert "did you mean KVFERRY_STORE_URL?" in warnings[0]
    assert SECRET not in warnings[0]
    [warning] = load({}, {**USER, "KVFERRY_SECRET_KEY": SECRET}, 1000).warnings
    assert "AWS" in warning
    assert SECRET not in warning


def test_an_unknown_key_names_itself_the_nearest_and_the_line(tmp_path):
    text = '# c\n[limits]\nmax_open_jobs = 5\nmax_inflight_chunk = 5\n[log]\nlevel = "info"\n'
    message = refused(tmp_path, text)
    assert message.startswith(f"{tmp_path}/config.toml:4: unknown key limits.max_inflight_chunk")
    assert message.endswith("did you mean limits.max_inflight_chunks?")
    assert "timeouts.lookup_seconds" in refused(tmp_path, "[limits]\nlookup_seconds = 1\n")
    assert "config.toml:1: unknown key url" in refused(tmp_path, f'url = "{SECRET}"\n')
    assert "did you mean store.url?" in refused(tmp_path, f'url = "{SECRET}"\n')
    assert "config.toml:2: unknown key zebra" in refused(tmp_path, "\n[zebra]\nstripes = 2\n")
    assert refused(tmp_path, "[limit]\nmax_open_jobs = 5\n").endswith("did you mean [limits]?")
    assert refused(tmp_path, "[socket]\nmode = 5\n").endswith("did you mean [sockets]?")
    assert "expected a table: [store]" in refused(tmp_path, f'store = "{SECRET}"\n')


def test_an_endless_file_is_no_configuration():
    with pytest.raises(ConfigError, match="more than 1 MiB"):
        load({"--config": "/dev/zero"}, USER, 1000)


@pytest.mark.parametrize(
    "key", ["secret_key", "aws_secret_access_key", "access_key", "session_token", "password"]
)
def test_credentials_are_refused_without_showing_them(tmp_path, key):
    for text in (
        f'[store]\n{key} = "{SECRET}"\n',
        f'{key} = "{SECRET}"\n',
        f'[s3.{key}]\nx="{SECRET}"',
    ):
        assert "unknown key" in refused(tmp_path, text) or "credentials" in refused(tmp_path, text)
    message = refused(tmp_path, f'[store]\n{key} = "{SECRET}"\n')
    assert f"config.toml:2: store.{key}: credentials don't belong here" in message


def test_aws_settings_are_pointed_to_their_variables(tmp_path):
    assert "AWS_ENDPOINT_URL_S3" in refused(tmp_path, '[store]\nendpoint_url = "http://x"\n')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[store]\nurl = 5\n", ":2: store.url: expected a string"),
        (f'[limits]\nmax_open_jobs = "{SECRET}"\n', ":2: limits.max_open_jobs: expected a whole"),
        ("[limits]\nmax_open_jobs = true\n", "expected a whole number"),
        ("[limits]\nmax_open_jobs = 1.5\n", "expected a whole number"),
        ("[limits]\nmax_open_jobs = 0\n", "must be from 1 to 1,000,000 (jobs)"),
        ("[timeouts]\nlookup_seconds = nan\n", "must be from 0.01 to 60 (seconds)"),
        ("[timeouts]\nlookup_seconds = inf\n", "must be from 0.01 to 60"),
        ("[timeouts]\nlookup_seconds = false\n", "expected a number (seconds)"),
        ('[timeouts]\nlookup_seconds = "2"\n', "expected a number (seconds)"),
        ("[sockets]\nallowed_uids = 5\n", "expected a list of whole numbers"),
        ("[sockets]\nallowed_uids = [-1]\n", "must be from 0"),
        ("[sockets]\nallowed_uids = [true]\n", "expected a list of whole numbers"),
        ("[sockets]\nallow_overflow_uid = 1\n", "expected true or false"),
        ('[sockets]\nmode = "rw"\n', "expected an octal string"),
        ("[sockets]\nmode = 0o660\n", "sockets.mode: expected a string"),
        (f'[integrity]\nverify = "{SECRET}"\n', "must be one of require, when-known, off"),
        ('[log]\nlevel = "loud"\n', "must be one of debug, info, warning, error"),
        (f'[http]\nlisten = "{SECRET}"\n', "expected host:port"),
        ('[http]\nlisten = ":70000"\n', "expected host:port"),
        ('[store]\nurl = "s3://b\\u0000"\n', "NUL"),
        ("[timeouts]\nhard_deadline_seconds = 5\n", "must not be below timeouts.transfer_seconds"),
        ("[limits\n", "not valid TOML"),
        (f"x = {'9' * 5000}\n", "not valid TOML"),
        (f"x = {'[' * 100_000}\n", "not valid TOML"),
    ],
)
def test_a_wrong_value_names_its_key_and_what_is_expected(tmp_path, text, expected):
    assert expected in refused(tmp_path, text)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (f"s3://{SECRET}@bucket/p", "credentials"),
        (f"s3://key:{SECRET.replace('/', '')}@bucket", "credentials"),
        (f"s3://bucket/p?secret={SECRET}", "'?'"),
        (f"http://{SECRET}", "file:///directory or s3://"),
        (SECRET, "file:///directory or s3://"),
        (f"s3://bucket/{SECRET}\n", "line break"),
        ("file:///sr\tv", "line break"),
        (" s3://bucket", "space"),
        (f"s3://bucket/{'p' * 513}", "513 characters, and the limit is 512"),
        ("s3://", "bucket"),
        ("s3://[", "file:///directory"),
        ("file://relative/x", "three slashes"),
        ("file:///", "no directory"),
        ("file:///a/../b", "'..'"),
    ],
)
def test_a_wrong_store_url_is_refused_without_showing_it(url, why):
    with pytest.raises(ConfigError) as caught:
        load({}, {**USER, "KVFERRY_STORE_URL": url}, 1000)
    assert caught.value.message.startswith("KVFERRY_STORE_URL: store.url: not a usable store URL")
    assert why in caught.value.message
    assert SECRET not in caught.value.message


@pytest.mark.parametrize("prefix", ["../x", "/x", "a//b", "a/./b", "a/..", "m@r=1+x y", "a/%2e%2e"])
def test_K06_a_prefix_that_leaves_its_place_is_refused(prefix):
    with pytest.raises(ConfigError):
        load({"--store-url": f"s3://bucket/{prefix}"}, USER, 1000)


def test_vllms_naming_needs_an_s3_store(tmp_path):
    text = '[store]\nnaming = "vllm"\nurl = "{}"\n'
    config = load_file(tmp_path, text.format("s3://bucket/p")).config
    assert config.server_settings(debug_attach_by_name=False).naming == "vllm"
    assert "store.naming" in refused(tmp_path, text.format("file:///srv/store"))
    assert "must be one of" in refused(tmp_path, '[store]\nnaming = "other"\n')


def test_G09_a_socket_path_over_107_bytes_is_refused_with_limit_and_path():
    fits = "/" + "d" * (107 - len("/kvferry.sock") - 1)
    assert load({"--socket-dir": fits}, USER, 1000).config.sockets.directory == fits
    for directory in (fits + "d", "/" + "ö" * 60):
        with pytest.raises(ConfigError) as caught:
            load({"--socket-dir": directory}, USER, 1000)
        assert "107" in caught.value.message
        assert directory in caught.value.message


def test_a_relative_catalog_directory_is_refused():
    for directory in ("catalog", "./catalog", "~/catalog"):
        with pytest.raises(ConfigError, match=r"KVFERRY_CATALOG_DIR.*absolute path, or empty"):
            load({}, {**USER, "KVFERRY_CATALOG_DIR": directory}, 1000)


def test_every_bound_of_the_engine_is_an_option_or_internal():
    mapped = {about.engine for _, _, about in all_options() if about.engine}
    internal = {"probe_wave", "probe_batch", "random_seed"}
    assert mapped | internal == {spec.name for spec in dataclasses.fields(EngineSettings)}
    assert not mapped & internal


def test_defaults_are_those_of_the_engine_and_the_service():
    config = load({}, USER, 1000).config
    assert config.engine_settings() == EngineSettings()
    settings = config.server_settings(debug_attach_by_name=False)
    assert settings == ServerSettings(socket_dir=Path("/run/user/1000/kvferry"))


def test_the_file_reaches_the_engine_and_the_service(tmp_path):
    config = load_file(
        tmp_path,
        "[limits]\nmax_inflight_chunks = 7\nmax_sessions = 3\n[timeouts]\ntransfer_seconds = 9\n"
        '[sockets]\nmode = "0600"\ngroup = "staff"\nallowed_uids = [5]\n'
        "allow_overflow_uid = true\n",
    ).config
    assert config.engine_settings() == EngineSettings(max_active_chunks=7, transfer_seconds=9.0)
    assert config.server_settings(debug_attach_by_name=True) == ServerSettings(
        socket_dir=Path("/run/user/1000/kvferry"),
        socket_mode=0o600,
        socket_group="staff",
        allowed_uids=frozenset({5}),
        allow_overflow_uid=True,
        debug_attach_by_name=True,
        max_sessions=3,
    )


def test_listen_forms():
    assert parse_listen("") is None
    assert parse_listen("0.0.0.0:9477") == ("0.0.0.0", 9477)
    assert parse_listen("[::1]:0") == ("::1", 0)


def test_tenants_by_uid_and_gid(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text('[tenants]\nuids = { 10001 = "team-a" }\n[tenants.gids]\n20001 = "team-b"\n')
    settings = load({"--config": str(path)}, {}, 0).config.server_settings(
        debug_attach_by_name=False
    )
    assert settings.tenants.by_uid == {10001: "team-a"}
    assert settings.tenants.by_gid == {20001: "team-b"}


@pytest.mark.parametrize(
    "value",
    [
        '"a"',
        "[1]",
        '{ alice = "a" }',
        "{ 1 = 2 }",
        '{ 1 = "a/b" }',
        '{ 1 = ".." }',
        '{ 1 = "" }',
        '{ 4294967295 = "a" }',
        '{ -1 = "a" }',
    ],
)
def test_tenants_that_cannot_be_right(tmp_path, value):
    path = tmp_path / "config.toml"
    path.write_text(f"[tenants]\nuids = {value}\n")
    with pytest.raises(ConfigError, match=r"tenants\.uids"):
        load({"--config": str(path)}, {}, 0)


def test_the_bound_of_the_catalog_reaches_the_store(tmp_path):
    from kvferry_server.adapters import integrity_catalog as integrity
    from kvferry_server.cli.wire import build_store

    config = load_file(
        tmp_path,
        f'[store]\nurl = "file://{tmp_path}/s"\n[integrity]\n'
        'catalog_bytes = 1_048_576\ncatalog_directory = ""\n',
    ).config
    store = build_store(config)
    try:
        catalog = store._integrity._catalog
        for number in range(10_000):
            catalog.put(str(number), integrity.Expectation(1, 1))
        assert 1000 < len(catalog) < 10_000
        assert len(catalog) == (1 << 20) // 384
    finally:
        store.close()
    assert load({}, USER, 1000).config.integrity.catalog_bytes == integrity.DEFAULT_CATALOG_BYTES
