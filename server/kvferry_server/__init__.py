"""The kvferry daemon: moves KV-cache chunks between shared memory and an object store."""

__version__ = "0.1.0"
