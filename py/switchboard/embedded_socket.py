"""Where the embedded server's socket lies.

A socket's path holds at most 107 bytes (103 on macOS), libpq splits a host at commas, and not every
file system can hold sockets. So: ``run`` in the data folder where that is possible, else a new
folder of mode 0700 and unguessable name in a place for such things, remembered in the data folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import stat
import tempfile
from pathlib import Path

from switchboard.datafolder import DataFolder

PORT = 5432  # of the file's name only: nothing listens on TCP
MAX_PATH_BYTES = 103
REMEMBERED = "socket.json"
_PLAIN = re.compile(r"[A-Za-z0-9_./+ -]+")


def folder_for(folder: DataFolder, uid: int) -> Path:
    """The socket folder of a data folder, made if need be, owned by ``uid`` with mode 0700.

    Raises:
        OSError: no place can hold a socket.
    """
    remembered = known(folder)
    if remembered is not None and _is_private(remembered, uid):
        return remembered
    found = _inside(folder, uid) or _elsewhere(uid)
    folder.write_json(REMEMBERED, {"folder": str(found), "port": PORT, "of": _identity(folder)})
    return found


def known(folder: DataFolder) -> Path | None:
    """The socket folder last used; None in a copy of a folder, whose original may be running."""
    remembered = folder.read_json(REMEMBERED) or {}
    if remembered.get("of") != _identity(folder):
        return None
    return Path(remembered["folder"])


def files(socket_dir: Path) -> list[Path]:
    """The files that a server keeps in its socket folder."""
    name = f".s.PGSQL.{PORT}"
    return [socket_dir / name, socket_dir / f"{name}.lock"]


def forget(folder: DataFolder) -> None:
    """Remove a socket folder that lies outside the data folder."""
    place = known(folder)
    if place is not None and place.parent != folder.path and _is_private(place, None):
        shutil.rmtree(place, ignore_errors=True)


def _identity(folder: DataFolder) -> str:
    info = folder.path.stat()
    return f"{folder.path}:{info.st_dev}:{info.st_ino}"


def _inside(folder: DataFolder, uid: int) -> Path | None:
    place = folder.path / "run"
    if not _PLAIN.fullmatch(str(place)) or _too_long(place):
        return None
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o700)
    place.chmod(0o700)
    if not _holds_sockets(place):
        return None
    _give(place, uid)
    return place


def _elsewhere(uid: int) -> Path:
    private = "/run" if os.geteuid() == 0 else os.environ.get("XDG_RUNTIME_DIR", "")
    for parent in (private, "/tmp", tempfile.gettempdir()):  # noqa: S108 (the name is random)
        if not parent or not os.path.isdir(parent):
            continue
        try:
            place = Path(tempfile.mkdtemp(prefix="switchboard-", dir=parent))
        except OSError:
            continue
        if not _too_long(place) and _PLAIN.fullmatch(str(place)) and _holds_sockets(place):
            _give(place, uid)
            return place
        place.rmdir()
    raise OSError("no folder can hold PostgreSQL's socket: make /tmp writable")


def _give(place: Path, uid: int) -> None:
    if place.stat().st_uid != uid:
        os.chown(place, uid, -1)


def _too_long(place: Path) -> bool:
    return len(os.fsencode(files(place)[1])) > MAX_PATH_BYTES


def _is_private(place: Path, uid: int | None) -> bool:
    """Whether it is a real folder of mode 0700 that belongs to ``uid`` (None: to anyone)."""
    try:
        info = place.lstat()
    except OSError:
        return False
    private = stat.S_ISDIR(info.st_mode) and stat.S_IMODE(info.st_mode) == 0o700
    return private and uid in (None, info.st_uid)


def _holds_sockets(place: Path) -> bool:
    probe = place / "probe"
    try:
        probe.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as endpoint:
            endpoint.bind(str(probe))
        probe.unlink()
    except OSError:
        return False
    return True
