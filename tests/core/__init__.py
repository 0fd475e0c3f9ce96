"""Tests of the pure engine. No I/O, no clock, no sleep."""
