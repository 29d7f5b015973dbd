"""``python -m chaos.client KIND HISTORY OPTIONS``: be a client of a run, until killed."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

KINDS = ("sql-worker", "mcp-worker", "sql-producer", "hook-producer")


def main(arguments: list[str]) -> int:
    """Be the client; returns 2 for a kind that is none."""
    kind, history, options = arguments[0], Path(arguments[1]), json.loads(arguments[2])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if kind in ("sql-worker", "mcp-worker"):
        from chaos.worker import Worker

        Worker(kind[:3], history, options).run()
    elif kind == "sql-producer":
        from chaos.producer import SqlProducer

        SqlProducer(history, options).run()
    elif kind == "hook-producer":
        from chaos.producer import HookProducer

        HookProducer(history, options).run()
    else:
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
