"""The contestants: programs that do what standard input says, each in a process of its own.

`protocol` is what all share. A worker imports what it measures; nothing imports a worker.
"""
