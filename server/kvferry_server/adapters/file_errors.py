"""What an error of the file system means for a store in a directory, and what to change.

Imports `findings` only.
"""

from __future__ import annotations

import errno

from .findings import Cause

_MEANINGS = {
    errno.ENOSPC: (Cause.DISK, "free some space, or name another directory in store.url"),
    errno.EDQUOT: (Cause.DISK, "raise the quota, or name another directory in store.url"),
    errno.EROFS: (Cause.DISK, "mount it read-write, or name another directory in store.url"),
    errno.EACCES: (Cause.PERMISSION, "change its owner or mode"),
    errno.EPERM: (Cause.PERMISSION, "change its owner or mode"),
    errno.ENOTDIR: (Cause.BUCKET, "a file is in the way: name another directory in store.url"),
    errno.EEXIST: (Cause.BUCKET, "a file is in the way: name another directory in store.url"),
}


def meaning(error: OSError) -> tuple[Cause, str]:
    """The class of the problem, and the advice."""
    return _MEANINGS.get(error.errno or 0, (Cause.OTHER, "look at the file system"))
