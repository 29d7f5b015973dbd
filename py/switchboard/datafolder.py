"""The data folder: one place for the embedded database, its key, and the first credentials.

Everything in it is private to whoever made it, and nothing outside it is touched. A folder that
holds other things is refused rather than adopted, and its mode and owner are set only when it is
made, so that pointing SWITCHBOARD_DATA at a home folder by mistake does no harm.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from switchboard.config import SECRET_KEY_BYTES, ConfigError, parse_secret_keys

MARKER = "switchboard.json"
LAYOUT = 1


class DataFolderError(ConfigError):
    """The folder cannot be used; the message says what to do."""


class AlreadyRunningError(DataFolderError):
    """Another process has this folder open; ``info`` is what that process wrote about itself."""

    def __init__(self, message: str, info: dict[str, Any]) -> None:
        super().__init__(message)
        self.info = info


class DataFolder:
    """Paths and private files below one folder.

    Args:
        path: the folder; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path))
        self.cluster = self.path / "postgres"
        self.log = self.path / "postgres.log"

    def exists(self) -> bool:
        """Whether this is a folder that ``open`` has made or adopted before."""
        return (self.path / MARKER).is_file()

    def make(self) -> None:
        """Make the folder (mode 0700) or accept an empty or earlier one.

        Raises:
            DataFolderError: it holds other things, is writable by others, or cannot be made.
        """
        name = str(self.path)
        try:
            self.path.mkdir(mode=0o700, parents=False, exist_ok=True)
        except FileNotFoundError:
            raise DataFolderError(f"{name}: the folder above it does not exist; make it.") from None
        except (FileExistsError, NotADirectoryError):
            raise DataFolderError(f"{name} is a file; set SWITCHBOARD_DATA to a folder.") from None
        except OSError as error:
            raise DataFolderError(
                f"{name} cannot be made ({error.strerror}); set SWITCHBOARD_DATA to a folder "
                "that you may write to."
            ) from None
        try:
            if not self.exists():
                if any(not _ours_in_the_making(entry.name) for entry in self.path.iterdir()):
                    raise DataFolderError(
                        f"{name} holds other things; set SWITCHBOARD_DATA to a new or empty folder."
                    )
                self.refuse_if_others_may_write()
                self.write_json(MARKER, {"layout": LAYOUT})
            self.refuse_if_others_may_write()
            layout = (self.read_json(MARKER) or {}).get("layout")
        except PermissionError:
            raise DataFolderError(
                f"{name} belongs to another user; run this as that user, or set SWITCHBOARD_DATA "
                "to a folder of your own."
            ) from None
        if layout != LAYOUT:
            raise DataFolderError(f"{name} was made by another version of switchboard ({layout}).")

    def refuse_if_others_may_write(self) -> None:
        """Refuse a folder in which another user could swap what we rely on."""
        if self.path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise DataFolderError(
                f"{self.path} can be written by other users; run: chmod go-w '{self.path}'"
            )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process. The lock ends with the process, however it ends.

        Raises:
            AlreadyRunningError: another process holds it.
        """
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self.give_to_owner(self.path / "lock")
            if not _take(descriptor):
                info = self.running() or {}
                raise AlreadyRunningError(
                    f"Switchboard is already running on {self.path} "
                    f"(process {info.get('pid', 'unknown')}, {info.get('url', 'starting')}).",
                    info,
                )
            try:
                yield
            finally:
                self.remove("running.json")
        finally:
            os.close(descriptor)

    def running(self) -> dict[str, Any] | None:
        """What the running ``up`` said about itself (pid, url, socket, port); None if none runs."""
        try:
            descriptor = os.open(self.path / "lock", os.O_RDWR)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return self.read_json("running.json") or {}
        finally:
            os.close(descriptor)
        return None

    def secret_keys(self) -> tuple[bytes, ...]:
        """The sealing keys of the key file; empty when there is none yet."""
        try:
            return parse_secret_keys((self.path / "secret.key").read_text())
        except FileNotFoundError:
            return ()

    def make_secret_key(self) -> tuple[bytes, ...]:
        """The sealing keys; made on first use and never overwritten."""
        if not self.secret_keys():
            text = base64.b64encode(secrets.token_bytes(SECRET_KEY_BYTES)).decode()
            self.write_private("secret.key", text + "\n")
        return self.secret_keys()

    def read_json(self, name: str) -> dict[str, Any] | None:
        """The object in file ``name``; None when absent or cut short by a crash."""
        try:
            value = json.loads((self.path / name).read_text())
        except (FileNotFoundError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        """Write an object to file ``name``, private and whole or not at all."""
        self.write_private(name, json.dumps(value, indent=2) + "\n")

    def write_private(self, name: str, text: str) -> None:
        """Write ``text`` to file ``name`` with mode 0600, durable, whole or not at all."""
        temporary = self.path / f".{name}.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        self.give_to_owner(temporary)
        temporary.replace(self.path / name)
        self.sync()

    def sync(self) -> None:
        """Make a rename in the folder survive a power cut."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def give_to_owner(self, path: Path) -> None:
        """When root works in a user's folder, leave files that the user can still use."""
        folder = self.path.stat()
        if os.geteuid() == 0 and folder.st_uid != path.lstat().st_uid:
            os.chown(path, folder.st_uid, folder.st_gid, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove a file or a folder below the data folder; absent is fine."""
        target = self.path / name
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


def _ours_in_the_making(name: str) -> bool:
    """Whether a second process that makes the same folder at the same moment left this name."""
    return name in (MARKER, "lock") or name.startswith(f".{MARKER}.")


def _take(descriptor: int) -> bool:
    """Take the lock; a look of ``running`` holds it for an instant, so try a few times."""
    for _ in range(10):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return True
    return False
