"""The soak: three engines, random faults, one real S3 server, and a look at what grows."""
