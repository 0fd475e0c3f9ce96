"""The contract suite on the stores that need nothing but Python packages."""

from __future__ import annotations

import pytest

from .contract import StoreContract, subject  # noqa: F401 - a fixture


@pytest.mark.parametrize("subject", ["file", "localbucket", "moto"], indirect=True)
class TestContract(StoreContract):
    """See `contract`."""
