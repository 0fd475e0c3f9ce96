"""Tests of the preflight, the credentials and the inspection of objects."""
