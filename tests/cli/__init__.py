"""Tests of the command line, the configuration and the daemon as it is really started."""
