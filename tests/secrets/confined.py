"""Runs a program under a seccomp filter that refuses what container runtimes refuse by default.

`python -m tests.secrets.confined PROGRAM ARGUMENT...`. The system calls below fail with EPERM, as
in Docker's and containerd's default profile for a container without capabilities; x86-64 only.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

REFUSED = {
    "ptrace": 101,
    "syslog": 103,
    "pivot_root": 155,
    "acct": 163,
    "settimeofday": 164,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "reboot": 169,
    "init_module": 175,
    "mbind": 237,
    "set_mempolicy": 238,
    "get_mempolicy": 239,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "migrate_pages": 256,
    "unshare": 272,
    "move_pages": 279,
    "perf_event_open": 298,
    "fanotify_init": 300,
    "open_by_handle_at": 304,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "finit_module": 313,
    "bpf": 321,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "pidfd_getfd": 438,
}
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD_NUMBER, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _EPERM = 0x7FFF0000, 0x00050001


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def confine() -> None:
    """Refuse these calls to this process and all that it starts."""
    lines = [struct.pack("HBBI", _LOAD_NUMBER, 0, 0, 0)]
    for left, number in enumerate(sorted(REFUSED.values(), reverse=True)):
        lines.insert(1, struct.pack("HBBI", _JUMP_IF_EQUAL, left + 1, 0, number))
    lines += [struct.pack("HBBI", _RETURN, 0, 0, what) for what in (_ALLOW, _EPERM)]
    program = _Program(len(lines), b"".join(lines))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        _PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "seccomp")


if __name__ == "__main__":
    confine()
    os.execvp(sys.argv[1], sys.argv[1:])
