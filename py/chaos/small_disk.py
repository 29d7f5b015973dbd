"""A disk of a few megabytes: a tmpfs, and on it a part of a cluster's data.

Mounting takes root's powers. Where those are missing (an ordinary user, a narrow container) there
is no small disk, and the scenario says so in place of a run.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
from pathlib import Path

from chaos.cluster import Cluster

PIECES = (1 << 20, 1 << 16, 1 << 12)


class NoSmallDiskError(Exception):
    """No tmpfs can be mounted here."""


class SmallDisk:
    """A tmpfs beside a cluster's data.

    Args:
        cluster: whose data it takes; stopped and started for it.
        part: the folder of the data that goes there: base (tables), or pg_wal.
        megabytes: its size.
    """

    def __init__(self, cluster: Cluster, part: str, megabytes: int) -> None:
        self.cluster, self.part, self.megabytes = cluster, part, megabytes
        self.place = cluster.folder / f"small-{part}"
        self.filler = self.place / "filler"

    def mount(self) -> None:
        """Move the part there.

        Raises:
            NoSmallDiskError: root's powers are missing.
        """
        owner = self.cluster.identity
        options = f"size={self.megabytes}m,mode=0700,uid={owner.uid},gid={owner.gid}"
        self.place.mkdir()
        run = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "switchboard-chaos", str(self.place)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if run.returncode:
            raise NoSmallDiskError(f"no small disk can be mounted here: {run.stderr.strip()}")
        atexit.register(self._unmount)
        self._move(self.cluster.data / self.part, self.place / self.part, link=True)

    def give_back(self) -> None:
        """Move the part back to where it was, and unmount."""
        self.empty()
        self._move(self.place / self.part, self.cluster.data / self.part, link=False)
        self._unmount()

    def fill(self) -> None:
        """Leave not a page."""
        with self.filler.open("ab", buffering=0) as file:
            for size in PIECES:
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)) == size:
                        pass

    def empty(self) -> None:
        """Make room again."""
        self.filler.unlink(missing_ok=True)

    def _move(self, here: Path, there: Path, *, link: bool) -> None:
        self.cluster.stop("fast")
        if there.is_symlink():
            there.unlink()
        subprocess.run(["cp", "-a", str(here), str(there)], check=True, timeout=120)
        shutil.rmtree(here)
        if link:
            here.symlink_to(there)
            os.chown(
                here, self.cluster.identity.uid, self.cluster.identity.gid, follow_symlinks=False
            )
        self.cluster.start()

    def _unmount(self) -> None:
        atexit.unregister(self._unmount)
        subprocess.run(["umount", "-l", str(self.place)], capture_output=True, check=False)
