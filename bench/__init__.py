"""The benches: every figure is a ratio of two things that run in turn on one machine.

`python -m bench` (make bench) measures the cells and writes docs/performance.md; `--quick` (make
bench-quick) takes fewer. What each file owns stands in its docstring. Imports tests.support for
the S3 servers, `kvferry_server.cli.pairs` for the statistics, and from workers only `protocol`.
"""
