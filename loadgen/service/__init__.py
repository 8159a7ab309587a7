"""`loadgen serve`: runs started, watched, stopped and compared over HTTP, and a page that does it.

A leaf: it imports the core and is imported by the command line alone. It measures nothing. Each run
is a process tree of its own, the `loadgen` command with its own directory, and all state is in
files: a service that is killed and started again finds what there is.
"""
