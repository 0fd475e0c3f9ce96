"""The outside world: NIXL, S3, files, shared memory, metrics."""
