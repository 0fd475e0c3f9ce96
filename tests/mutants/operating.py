"""Mutants of what operators rely on: each breaks one row of reported bugs, by the row's test."""

from __future__ import annotations

from .mutant import ADAPTERS, CLI, CLIENT, SERVICE, Mutant

OPERATING = (
    Mutant(
        "B01",
        "O01: SIGTERM ends a daemon that has only begun to start",
        CLI + "serve.py",
        "for number in (signal.SIGTERM, signal.SIGINT):",
        "for number in (signal.SIGINT,):",
        "tests/cli/test_serve.py::test_O01_sigterm_before_anything_is_loaded",
    ),
    Mutant(
        "B02",
        "O03: a probe is a call, not a look at the socket's file",
        CLI + "health.py",
        "    require_serving(Path(",
        "    assert Path.is_socket(Path(",
        "tests/cli/test_status.py::test_O03_a_stale_socket_is_not_healthy",
    ),
    Mutant(
        "B03",
        "O04: liveness does not depend on the store",
        CLI + "pages.py",
        "        self._info()\n        return Page(b",
        "        if degraded(self._info()):\n            raise TimeoutError\n        return Page(b",
        "tests/cli/test_http.py::test_O04_liveness_does_not_depend_on_the_store_or_on_load",
    ),
    Mutant(
        "B04",
        "O05: without a daemon, jobs end at once and are counted",
        CLIENT + "shared.py",
        "        self._add_results([JobResult(job_id, kind, (Outcome.NOT_SENT,) * chunks)])\n",
        "        return\n",
        "tests/client/test_lifecycle.py::test_O05_no_daemon_means_misses_and_counted_failures",
    ),
    Mutant(
        "B05",
        "O06: ownership is a lock, not a process id that may be anybody's",
        SERVICE + "sockets.py",
        "            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "            if os.pread(descriptor, 1, 0):\n                raise BlockingIOError\n",
        "tests/service/test_sockets.py::test_O06_ownership_is_the_lock_not_the_process_id",
    ),
    Mutant(
        "B06",
        "O07: the daemon is a native sidecar",
        "deploy/kubernetes/base/deployment.yaml",
        "          restartPolicy: Always\n",
        "          imagePullPolicy: Always\n",
        "tests/deploy/test_kubernetes.py::test_O07_the_daemon_is_a_native_sidecar",
    ),
    Mutant(
        "B07",
        "P01: every series is there from the start",
        ADAPTERS + "metrics.py",
        "        for family in FAMILIES:\n            yield",
        "        for family in FAMILIES[:-1]:\n            yield",
        "tests/cli/test_http.py::test_P01_every_series_is_there_from_the_start",
    ),
    Mutant(
        "B08",
        "P03: the number of series is fixed",
        ADAPTERS + "metrics.py",
        "        for family in FAMILIES:\n            yield",
        "        total = int(sum(snapshot.values.values()))\n"
        '        yield GaugeMetricFamily(f"kvferry_total_{total}", "x", value=1)\n'
        "        for family in FAMILIES:\n            yield",
        "tests/cli/test_http.py::test_P03_the_number_of_series_is_fixed",
    ),
    Mutant(
        "B09",
        "P04: two clients live in one process",
        CLIENT + "client.py",
        "        in_child(self, Client._start_over_in_child)\n",
        "        from kvferry_client.forks import _hooks\n"
        "        if any(isinstance(owner, Client) for owner in _hooks):\n"
        '            raise ValueError("Duplicated timeseries")\n'
        "        in_child(self, Client._start_over_in_child)\n",
        "tests/client/test_basics.py::test_P04_two_clients_in_one_process",
    ),
    Mutant(
        "B10",
        "P05: files of dead processes are not reported",
        ADAPTERS + "metrics.py",
        "        self._registry = CollectorRegistry(auto_describe=False)\n",
        "        from prometheus_client import multiprocess\n"
        "        self._registry = CollectorRegistry(auto_describe=False)\n"
        "        multiprocess.MultiProcessCollector(self._registry)\n",
        "tests/cli/test_http.py::test_P05_an_inherited_multiprocess_directory_is_ignored",
    ),
    Mutant(
        "B11",
        "P06: a taken port is one clear line",
        CLI + "http_listener.py",
        "                return listener\n        except OSError as error:",
        "                return listener\n        except PermissionError as error:",
        "tests/cli/test_http.py::test_P06_a_taken_port_is_one_clear_line",
    ),
    Mutant(
        "B12",
        "P06: a killed daemon's successor gets the port at once",
        CLI + "http_listener.py",
        "                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n",
        "",
        "tests/cli/test_http.py::test_P06_a_restart_after_a_kill_gets_its_port_at_once",
    ),
    Mutant(
        "B13",
        "M02: a region that somebody has open is kept",
        CLIENT + "cleanup.py",
        "    except BlockingIOError:\n        return Fate.IN_USE",
        "    except BlockingIOError:\n        return Fate.LEFT",
        "tests/client/test_cleanup.py::test_M02_a_region_that_a_live_process_has_mapped_is_kept",
    ),
    Mutant(
        "B14",
        "M10: compose gives the region enough shared memory",
        "deploy/compose/compose.yaml",
        "    shm_size: 9gb\n",
        "    shm_size: 1gb\n",
        "tests/deploy/test_compose.py::test_M10_the_region_fits_into_shared_memory",
    ),
    Mutant(
        "B15",
        "M10: a missing shared-memory file hints at what containers share",
        ADAPTERS + "shm.py",
        '"shared /dev/shm to attach by name (containers have their own each); lease.sock does "',
        '"file to attach by name; lease.sock does "',
        "tests/service/test_shm.py::test_M10_an_absent_shm_file_hints_at_the_shared_dev_shm",
    ),
    Mutant(
        "B16",
        "M11: shared memory is reserved, so that a lack of it is an error and no SIGBUS",
        CLIENT + "demo.py",
        "        os.posix_fallocate(descriptor, 0, size)\n",
        "        os.ftruncate(descriptor, size)\n",
        "tests/cli/test_demo.py::test_M11_too_little_shared_memory_is_named_with_both_numbers",
    ),
    Mutant(
        "B17",
        "G02: a stale socket is replaced",
        SERVICE + "sockets.py",
        "            )\n        path.unlink()\n",
        "            )\n",
        "tests/service/test_sockets.py::test_G02_a_stale_socket_is_replaced",
    ),
    Mutant(
        "B18",
        "G03: the sockets' mode is set, whatever the umask",
        SERVICE + "sockets.py",
        "            path.chmod(ADMIN_MODE if admin else self._mode)\n",
        "",
        "tests/service/test_peers.py"
        "::test_G03_group_members_attach_and_others_are_refused_whatever_the_umask",
    ),
    Mutant(
        "B19",
        "G09: a socket path over 107 bytes is refused when the configuration is read",
        CLI + "config.py",
        "    if len(os.fsencode(path)) > SOCKET_PATH_BYTES:",
        "    if not path:",
        "tests/cli/test_config.py"
        "::test_G09_a_socket_path_over_107_bytes_is_refused_with_limit_and_path",
    ),
    Mutant(
        "B20",
        "S11: the documented configuration starts",
        CLI + "config.py",
        "    if config.timeouts.hard_deadline_seconds < config.timeouts.transfer_seconds:",
        "    if config.timeouts.hard_deadline_seconds > config.timeouts.transfer_seconds:",
        "tests/cli/test_documented.py::test_S11_the_readmes_command_starts_as_it_stands",
    ),
)
