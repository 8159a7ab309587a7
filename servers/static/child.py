"""The entry of the model's process: ties its life to the parent's, then loads the engine and
serves.

It ends when the parent closes the socket or dies. SIGTERM and SIGINT, which reach the whole process
group, are left to the parent to answer: a batch must be able to finish while the server drains.
"""

import os
import signal
import socket
import sys

from servers.lifetime import die_with_parent
from servers.static.wire import Link


def main() -> int:
    """Serve over the socket whose descriptor is the first argument; the second is the parent."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    descriptor, parent_pid = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent_pid, signal.SIGKILL)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Here and not above: importing torch takes seconds, in which a signal must not end this
    # process.
    from servers.static.engine import serve

    try:
        return serve(Link(socket.socket(fileno=descriptor)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0


if __name__ == "__main__":
    sys.exit(main())
