"""Deliberately broken builds, and the test that notices each: `make mutants`."""
