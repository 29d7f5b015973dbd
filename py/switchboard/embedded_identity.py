"""As whom the embedded PostgreSQL runs.

An ordinary user runs it as himself. Root may not (PostgreSQL refuses), so root's server runs as
the owner of an existing cluster, else as a system user of its own, ``_switchboard``. When that user
cannot pass a folder above the package or the data (a home of mode 0700, say), no mode is changed:
the process keeps one capability to pass it, or else appears to itself as another user inside a
user namespace. Each way is tried before it is used.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from switchboard import embedded_launch

SERVICE_USER = "_switchboard"
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2


class EmbeddedError(RuntimeError):
    """The embedded PostgreSQL cannot run; the message says what to do."""


@dataclass(frozen=True)
class Identity:
    """A way to run PostgreSQL's programs.

    Attributes:
        uid, gid: who the data belongs to, seen from outside.
        peer: the name under which the server sees us on its socket.
        how: for people.
        change: what embedded_launch has to do.
    """

    uid: int
    gid: int
    peer: str
    how: str
    change: dict[str, Any]

    def command(self, arguments: Sequence[str | Path], parent: int | None = None) -> list[str]:
        """The command line that runs ``arguments`` as this identity."""
        spec = json.dumps({**self.change, "parent": parent})
        launcher = [sys.executable, "-I", embedded_launch.__file__, spec]
        return [*launcher, *(str(argument) for argument in arguments)]


def choose(
    postgres: Path, folder: Path, owner: int | None, own: Callable[[Identity], None]
) -> Identity:
    """The first identity that can pass into ``folder`` and start the program ``postgres``.

    Args:
        postgres: the server's binary.
        folder: the data folder.
        owner: uid that owns the existing cluster, if there is one.
        own: called before a try; gives the data to the identity.

    Raises:
        EmbeddedError: none works.
    """
    failures = []
    for identity in _candidates(owner):
        try:
            own(identity)
            failure = _failure(identity, postgres, folder)
        except OSError as error:  # root without its powers, as in a narrow container
            failure = str(error)
        if failure is None:
            return identity
        failures.append(f"  {identity.how}: {failure}")
    raise EmbeddedError(
        "PostgreSQL cannot be run here, tried:\n"
        + "\n".join(failures)
        + "\nRun this as an ordinary user (one that has a name), or set SWITCHBOARD_DATABASE_URL "
        "to a PostgreSQL 15-18 server of yours."
    )


def _candidates(owner: int | None) -> Iterator[Identity]:
    uid, gid = os.geteuid(), os.getegid()
    name = _name(uid)
    if uid != 0:
        if name is not None:
            yield Identity(uid, gid, name, f"as user {name}", {})
    else:
        found = _target_of_root(owner)
        if found is not None:
            target, group, called = found
            change = {"uid": target, "gid": group}
            peer = name or "root"
            yield Identity(target, group, peer, f"as user {called}", change)
            for capability in (CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE):
                how = f"as user {called} who may pass closed folders"
                yield Identity(target, group, peer, how, {**change, "capability": capability})
    inner = _some_named_user()
    if inner is not None and sys.platform == "linux":
        how = f"as yourself, called {inner.pw_name} in a user namespace"
        inside = {"userns": [inner.pw_uid, inner.pw_gid]}
        yield Identity(uid, gid, inner.pw_name, how, inside)


def _failure(identity: Identity, postgres: Path, folder: Path) -> str | None:
    """Why this identity does not work, or None."""
    script = 'cd -- "$1" && exec "$2" --version'
    command = identity.command(["/bin/sh", "-c", script, "sh", folder, postgres])
    run = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if run.returncode == 0:
        return None
    return (run.stderr or run.stdout).strip().splitlines()[-1] if run.stderr or run.stdout else "?"


def _target_of_root(owner: int | None) -> tuple[int, int, str] | None:
    """uid, gid and name of the user whom root's server runs as; None when none can be made."""
    if owner:
        try:
            entry = pwd.getpwuid(owner)
        except KeyError:
            return owner, owner, str(owner)
        return entry.pw_uid, entry.pw_gid, entry.pw_name
    try:
        entry = pwd.getpwnam(SERVICE_USER)
    except KeyError:
        made = _make_service_user()
        if made is None:
            return None
        entry = made
    return entry.pw_uid, entry.pw_gid, entry.pw_name


def _make_service_user() -> pwd.struct_passwd | None:
    """Make the system user: no login, no home."""
    ways = (
        ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent",
         "--shell", "/usr/sbin/nologin", SERVICE_USER],
        ["adduser", "-S", "-D", "-H", "-h", "/nonexistent", "-s", "/sbin/nologin", SERVICE_USER],
    )  # fmt: skip
    for way in ways:
        if shutil.which(way[0]):
            subprocess.run(way, capture_output=True, check=False)
            try:
                return pwd.getpwnam(SERVICE_USER)  # made by us, or by another at the same moment
            except KeyError:
                continue
    return None


def _name(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def _some_named_user() -> pwd.struct_passwd | None:
    """Any user but root and the one that stands for all unmapped ones."""
    overflow = 65534
    return next((u for u in pwd.getpwall() if u.pw_uid not in (0, overflow)), None)
