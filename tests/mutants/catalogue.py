"""The mutants: what is broken, where, and the one test that must fail then.

A mutant is a replacement of text that occurs exactly once in a file. `fence` is the promise that it
breaks, as docs/guarantees.md words it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
CORE = "server/kvferry_server/core/"
ADAPTERS = "server/kvferry_server/adapters/"
SERVICE = "server/kvferry_server/service/"
CLIENT = "client/kvferry_client/"


@dataclass(frozen=True)
class Mutant:
    """One broken build.

    Args:
        ident: `M01` and so on.
        fence: what it takes away.
        file: relative to the repository.
        old: text that occurs once in the file.
        new: what stands there instead.
        test: path and name of the test that must fail.
    """

    ident: str
    fence: str
    file: str
    old: str
    new: str
    test: str


MUTANTS = (
    Mutant(
        "M01",
        "a job is reported only when all its chunks are terminal",
        CORE + "tables.py",
        "return self.counts[ChunkState.DONE] == len(self.chunks)",
        "return self.counts[ChunkState.QUEUED] == 0 and self.counts[ChunkState.DONE] > 0",
        "tests/core/test_transfers.py::test_J08_one_missing_key_does_not_change_the_others",
    ),
    Mutant(
        "M02",
        "an active chunk is awaited, never failed at its deadline",
        CORE + "transfers.py",
        "            if chunk.state is ChunkState.QUEUED:\n                self._drop(chunk,",
        "            if chunk.state is not ChunkState.DONE:\n                self._drop(chunk,",
        "tests/core/test_deadlines.py::test_J03_a_queued_chunk_expires_and_an_active_one_does_not",
    ),
    Mutant(
        "M03",
        "the lease ends only when nothing of the session is active",
        CORE + "engine.py",
        "            if session.active_chunks:\n                continue\n",
        "",
        "tests/core/test_sessions.py::test_a_closed_session_is_quiet_once_nothing_of_it_is_active",
    ),
    Mutant(
        "M04",
        "the lease ends only after the region was unmapped, which no view outlives",
        SERVICE + "sessions.py",
        "                await asyncio.sleep(_UNMAP_RETRY_SECONDS)\n",
        "                break\n",
        "tests/service/test_lease.py::test_a_view_that_is_still_alive_keeps_region_and_lease",
    ),
    Mutant(
        "M05",
        "no descriptor of a lease is inherited, so that its end is never delayed",
        SERVICE + "lease.py",
        "socket.MSG_CMSG_CLOEXEC",
        "0",
        "tests/service/test_lease.py"
        "::test_descriptors_are_close_on_exec_from_the_moment_they_arrive",
    ),
    Mutant(
        "M06",
        "one NIXL handle carries one chunk, and a running one is not over",
        ADAPTERS + "nixl_driver.py",
        "            if state is MoveState.RUNNING:\n                self._running.append(chunk)",
        "            if state is MoveState.RUNNING:\n"
        "                self._release(chunk)\n"
        "                self._advance(chunk, answer=False)",
        "tests/stores/test_s3_faults.py::test_J08_one_missing_among_eight_with_slow_siblings",
    ),
    Mutant(
        "M07",
        "a transfer that NIXL lost is never reported: it may still write",
        ADAPTERS + "nixl_driver.py",
        '            _logger.exception("a transfer is lost; its slot stays occupied")\n'
        "            return None",
        '            _logger.exception("a transfer is lost; its slot stays occupied")\n'
        "            return MoveState.FAILED",
        "tests/stores/test_nixl_driver.py::test_a_lost_transfer_is_never_reported",
    ),
    Mutant(
        "M08",
        "agents are closed only after their last transfer",
        ADAPTERS + "nixl_driver.py",
        "return self._closing and not self._under_way and not self._waiting",
        "return self._closing",
        "tests/stores/test_s3_faults.py::test_N02_close_waits_for_a_slow_put",
    ),
    Mutant(
        "M09",
        "the hard deadline ends the daemon",
        CORE + "transfers.py",
        "if age >= self._settings.hard_deadline_seconds:",
        "if False:",
        "tests/core/test_deadlines.py::test_a_stuck_transfer_ends_the_daemon_at_the_hard_deadline",
    ),
    Mutant(
        "M10",
        "the hard deadline counts only time in which the loop was seen ticking",
        CORE + "transfers.py",
        "min(now - self._last_step, _MAX_COUNTED_GAP_SECONDS)",
        "now - self._last_step",
        "tests/core/test_deadlines.py"
        "::test_the_hard_deadline_counts_only_time_in_which_the_loop_was_seen",
    ),
    Mutant(
        "M11",
        "a retry never starts after the session's end, a drain or the stop",
        CORE + "transfers.py",
        "status is not TransferStatus.UNAVAILABLE or not job.retries_allowed:",
        "status is not TransferStatus.UNAVAILABLE:",
        "tests/core/test_sessions.py"
        "::test_a_drain_cancels_what_is_queued_and_awaits_what_is_active",
    ),
    Mutant(
        "M12",
        "an id seen before never starts again (job-id memory)",
        CORE + "engine.py",
        "elif spec.job_id in session.seen:",
        "elif False:",
        "tests/core/test_checks.py::test_repeats_join_or_are_told_and_start_nothing",
    ),
    Mutant(
        "M13",
        "results stay until they are acknowledged",
        CORE + "tables.py",
        "self.results[0].seq <= seq:",
        "self.results[0].seq <= seq + 1:",
        "tests/core/test_sessions.py::test_results_come_again_until_they_are_acknowledged",
    ),
    Mutant(
        "M14",
        "an acknowledgement beyond the last result is refused",
        CORE + "engine.py",
        "        checks.check_ack(event.ack_seq, session.last_seq)\n",
        "",
        "tests/core/test_checks.py"
        "::test_an_ack_beyond_the_last_result_is_refused_and_the_older_poll_waits_on",
    ),
    Mutant(
        "M15",
        "a repeated end of a transfer changes nothing",
        CORE + "transfers.py",
        "        del self._active[transfer_id]\n        chunk = attempt.chunk\n",
        "        chunk = attempt.chunk\n",
        "tests/core/test_checks.py::test_J04_a_second_end_of_a_transfer_changes_nothing",
    ),
    Mutant(
        "M16",
        "a job names no slot twice",
        CORE + "checks.py",
        "if len(set(job.slots)) != len(job.slots):",
        "if False:",
        "tests/core/test_checks.py::test_a_malformed_request_is_refused_as_a_whole",
    ),
    Mutant(
        "M17",
        "a slot that a load writes belongs to that load alone",
        CORE + "checks.py",
        "busy = slot in session.loading_slots",
        "busy = kind is JobKind.LOAD and slot in session.loading_slots",
        "tests/core/test_checks.py::test_only_stores_may_share_a_slot",
    ),
    Mutant(
        "M18",
        "only one store of an object runs at a time",
        CORE + "transfers.py",
        "elif chunk.ref in self._storing:",
        "elif False:",
        "tests/core/test_transfers.py"
        "::test_a_key_whose_store_runs_is_not_stored_twice_also_across_sessions",
    ),
    Mutant(
        "M19",
        "a finished store outdates any probe that began before it",
        CORE + "lookups.py",
        "probing.outdated = True",
        "pass",
        "tests/core/test_lookups.py::test_a_finished_store_outdates_an_older_probe",
    ),
    Mutant(
        "M20",
        "an object that failed its check is a miss until the next store overwrites it",
        CORE + "transfers.py",
        "            self._presence.condemn(chunk.ref, now)",
        "            self._presence.stored(chunk.ref, now)",
        "tests/core/test_transfers.py"
        "::test_L01_a_condemned_object_is_absent_until_the_next_store_overwrites_it",
    ),
    Mutant(
        "M21",
        "an answer of the store (403, 404) is no outage",
        CORE + "transfers.py",
        "if status is TransferStatus.UNAVAILABLE or (",
        "if status not in (TransferStatus.OK, TransferStatus.INTERNAL) or (",
        "tests/core/test_breakers.py::test_S04_an_answer_of_the_store_is_no_infrastructure_failure",
    ),
    Mutant(
        "M22",
        "queued stores are bounded",
        CORE + "transfers.py",
        "if refusal is None and self.queued_store_bytes + size > (",
        "if False and self.queued_store_bytes + size > (",
        "tests/core/test_transfers.py::test_J12_excess_stores_are_shed_at_once_and_counted",
    ),
    Mutant(
        "M23",
        "a load is LOADED only with the right checksum",
        ADAPTERS + "integrity.py",
        "        if crc32c(buffer) == crc:",
        "        if True:",
        "tests/stores/test_integrity.py"
        "::test_corrupt_is_corrupt_even_if_its_last_byte_is_the_canary",
    ),
    Mutant(
        "M24",
        "a short object of unknown content is noticed by the canary",
        ADAPTERS + "integrity.py",
        "    return TransferStatus.WRONG_SIZE if buffer[-1] == canary else status",
        "    return status",
        "tests/stores/test_integrity.py::test_a_short_object_never_passes",
    ),
    Mutant(
        "M25",
        "an over-long object of unknown length is noticed by its size",
        ADAPTERS + "integrity.py",
        "    if facts.size_bytes != buffer.nbytes:",
        "    if not facts.size_bytes:",
        "tests/stores/test_contract.py::TestContract::test_D03_over_long_object[1-localbucket]",
    ),
    Mutant(
        "M26",
        "a failed overwrite keeps the old checksum, so that damaged bytes never pass after it",
        ADAPTERS + "integrity.py",
        "        if crc is None:\n            self._catalog.drop(name)\n",
        "        self._catalog.drop(name)\n",
        "tests/stores/test_integrity.py::test_a_failed_overwrite_keeps_the_checksum",
    ),
    Mutant(
        "M27",
        "the SDK tries once: a retry inside it would mix an error's body with the chunk's bytes",
        ADAPTERS + "nixl_library.py",
        '"AWS_MAX_ATTEMPTS": "1"',
        '"AWS_MAX_ATTEMPTS": "3"',
        "tests/stores/test_nixl_library.py::test_the_sdk_is_told_to_try_once_and_boto3_is_not",
    ),
    Mutant(
        "M28",
        "a file shows under its name only when it is complete (temporary name, rename)",
        ADAPTERS + "nixl_file_store.py",
        "        temporary, descriptor = self._open_temporary()\n",
        "        path.parent.mkdir(parents=True, exist_ok=True)\n"
        "        temporary = path\n"
        "        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)\n",
        "tests/stores/test_file_store.py::test_a_failed_overwrite_keeps_the_file",
    ),
    Mutant(
        "M29",
        "a name never leads out of the store's directory",
        ADAPTERS + "nixl_file_store.py",
        'or ".." in parts or',
        "or",
        "tests/stores/test_file_store.py::test_a_name_that_leads_elsewhere_is_refused",
    ),
    Mutant(
        "M30",
        "the region's size is looked at again before each transfer",
        ADAPTERS + "shm.py",
        "if os.fstat(segment.descriptor).st_size < segment.range.start + end:",
        "if False:",
        "tests/service/test_shm.py::test_a_region_that_shrank_refuses_the_slots_that_are_gone",
    ),
    Mutant(
        "M31",
        "a region of a live session is not attached twice",
        SERVICE + "sessions.py",
        "            self._check_overlap(region)\n",
        "",
        "tests/service/test_lease.py::test_a_region_overlapping_an_attached_one_is_refused",
    ),
    Mutant(
        "M32",
        "a call needs its session's token",
        SERVICE + "sessions.py",
        "if not hmac.compare_digest(session.token, ref.token):",
        "if False:",
        "tests/service/test_bad_input.py::test_every_call_needs_the_session_and_its_token",
    ),
    Mutant(
        "M33",
        "only allowed peers attach",
        SERVICE + "lease.py",
        "        self._policy.check(peer)\n",
        "",
        "tests/service/test_peers.py::test_a_peer_that_gets_through_the_directory_is_still_checked",
    ),
    Mutant(
        "M34",
        "one daemon a directory (flock)",
        SERVICE + "sockets.py",
        "            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "            pass",
        "tests/service/test_sockets.py"
        "::test_a_second_daemon_on_the_directory_is_refused_and_touches_nothing",
    ),
    Mutant(
        "M35",
        "a regular file where a socket should be is kept",
        SERVICE + "sockets.py",
        "if not stat.S_ISSOCK(mode):",
        "if False:",
        "tests/service/test_sockets.py::test_G02_a_regular_file_at_the_path_is_refused_and_kept",
    ),
    Mutant(
        "M36",
        "the client releases nothing before end-of-file on the lease",
        CLIENT + "shared.py",
        '            self.cancel_queued("session_ending")\n',
        "            session.jobs.end()\n",
        "tests/client/test_fencing.py::test_session_errors_half_close_but_release_nothing",
    ),
    Mutant(
        "M37",
        "results of another daemon (boot id) are not believed",
        CLIENT + "poller.py",
        "if reply.boot_id != session.boot_id:",
        "if False:",
        "tests/client/test_fencing.py::test_results_of_another_daemon_are_not_believed",
    ),
    Mutant(
        "M38",
        "each job has exactly one result, however often the wire repeats it",
        CLIENT + "jobs.py",
        "if result.seq <= self._ack_seq:",
        "if False:",
        "tests/client/test_fencing.py::test_J04_late_and_repeated_results_are_dropped_and_counted",
    ),
    Mutant(
        "M39",
        "a refusal after an unclear attempt releases nothing",
        CLIENT + "jobs.py",
        "if batch.doubtful or any(",
        "if any(",
        "tests/client/test_fencing.py::test_refusal_after_an_unclear_attempt_releases_nothing",
    ),
    Mutant(
        "M40",
        "the client half-closes and waits, it never closes first",
        CLIENT + "lease.py",
        "self._connection.shutdown(socket.SHUT_WR)",
        "self._connection.shutdown(socket.SHUT_RDWR)",
        "tests/client/test_fencing.py::test_session_errors_half_close_but_release_nothing",
    ),
    Mutant(
        "M41",
        "core dumps and same-uid processes see nothing of the daemon",
        ADAPTERS + "hardening.py",
        "libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)",
        "libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)",
        "tests/service/test_hardening.py::test_no_dumps_and_no_core",
    ),
    Mutant(
        "M42",
        "a load of an object of unknown checksum is compared with the one that the store keeps",
        ADAPTERS + "integrity.py",
        "    if checksum and facts.checksum is not None and not facts.checksum.is_of(buffer):",
        "    if False:",
        "tests/stores/test_stored_checksums.py::"
        "test_damage_that_the_server_does_not_notice_is_noticed",
    ),
    Mutant(
        "M43",
        "the checksums of a multipart upload's parts say nothing of the whole object",
        ADAPTERS + "stored_checksums.py",
        '    if answer.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT":\n        return None\n',
        "",
        "tests/stores/test_stored_checksums.py::"
        "test_what_says_nothing_of_the_whole_object_is_no_checksum",
    ),
    Mutant(
        "M44",
        "`require` moves nothing whose checksum nobody knows",
        ADAPTERS + "integrity.py",
        "                return TransferStatus.CORRUPT, known\n",
        "                pass\n",
        "tests/stores/test_stored_checksums.py::"
        "test_require_moves_nothing_that_nobody_knows_a_checksum_of",
    ),
    Mutant(
        "M45",
        "a handle is released once its transfer is over",
        ADAPTERS + "nixl_driver.py",
        "                self._agent.finish(chunk.handle)\n",
        "                pass\n",
        "tests/stores/test_s3_faults.py::test_handles_are_counted_until_they_are_released",
    ),
)
