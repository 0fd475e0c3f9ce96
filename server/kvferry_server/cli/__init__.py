"""The `kvferry` command: configuration, wiring and subcommands.

May import everything below it: service, adapters, core. Nothing imports it. `wire` is the only
module that builds adapters.
"""
