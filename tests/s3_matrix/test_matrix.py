"""The contract suite over every real S3 server. A server that is not installed is a failure."""

from __future__ import annotations

import pytest

from tests.stores.contract import StoreContract, subject  # noqa: F401 - a fixture

SERVERS = ("ceph", "seaweedfs", "juicefs", "rclone")


@pytest.mark.matrix
@pytest.mark.parametrize("subject", SERVERS, indirect=True)
class TestMatrix(StoreContract):
    """See `tests.stores.contract`."""
