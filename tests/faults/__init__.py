"""The fault matrix: named faults against a real daemon, driven by a real client that checks bytes.

`make faults` runs all, writes `verdicts.json` here and docs/faults.md from it.
"""
