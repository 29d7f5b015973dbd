"""What a person may ask of a benchmark on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """Settings of one call of bench/run.

    Attributes:
        quick: a smoke run of a few seconds on little data; nothing is judged.
        server: major version of Debian's packages, or ``embedded``; None is the benchmark's own.
        seconds: length of one timed run; None is the benchmark's own.
        peers: measure pgmq and Procrastinate, too, where that makes sense.
        patch: an SQL file to run as the owner after migrating a second database; the cycle rate is
            then measured with and without it, in turns.
    """

    quick: bool = False
    server: str | None = None
    seconds: float | None = None
    peers: bool = True
    patch: Path | None = None
