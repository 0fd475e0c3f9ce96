"""The pure part of the daemon: no I/O, clock, thread, task or logger.

Imports the standard library only. `Engine.step(event, now)` takes an event of
`events`, returns effects of `effects`, or raises an error of `errors` and changes
nothing.
"""
