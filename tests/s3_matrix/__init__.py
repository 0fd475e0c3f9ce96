"""The contract of object stores over real, independent S3 servers (make matrix)."""
