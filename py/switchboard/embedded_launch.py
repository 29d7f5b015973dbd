"""Become the user that PostgreSQL runs as, then turn into the given program.

Run as a program of its own (``python -I embedded_launch.py SPEC COMMAND…``) because only a process
with one thread may enter a user namespace, and because code between fork and exec of a threaded
program is not safe. It must not import anything of this package.

SPEC is a JSON object:
    uid, gid:    become this user; PostgreSQL refuses to run as root
    capability:  number of a capability that survives the change of user, so that a folder like a
                 0700 home above the data folder stays passable without changing its mode
    userns:      [uid, gid] under which we appear to ourselves inside a new user namespace
    parent:      process id of the caller; when it ends, the program gets SIGINT and stops cleanly
Exit status 126 with one line on standard error when the user cannot be changed.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

PR_SET_PDEATHSIG, PR_SET_KEEPCAPS, PR_SET_SECUREBITS, PR_CAP_AMBIENT = 1, 8, 28, 47
PR_CAP_AMBIENT_RAISE = 2
# Without the "no set-uid fixup" bit, access(2) answers as if we held no capability, and
# PostgreSQL asks access(2) whether its own binary can be executed.
SECBIT_NO_SETUID_FIXUP = 1 << 2
CLONE_NEWUSER = 0x10000000
CAPABILITY_VERSION_3 = 0x20080522
SIGINT = 2


def main(argv: list[str]) -> None:
    """Read SPEC, change the user, and become COMMAND; returns only by raising."""
    spec: dict[str, Any] = json.loads(argv[1])
    os.umask(0o077)
    if spec.get("userns"):
        enter_user_namespace(*spec["userns"])
    elif spec.get("uid") is not None:
        become(spec["uid"], spec["gid"], spec.get("capability"))
    if spec.get("parent") and sys.platform == "linux":
        prctl(PR_SET_PDEATHSIG, SIGINT)
        # The caller may have died before that took effect. (Inside a new pid view: 0, accepted.)
        if os.getppid() not in (spec["parent"], 0):
            raise OSError("the process that wanted PostgreSQL has ended")
    os.execv(argv[2], argv[2:])  # noqa: S606 (no shell is the point)


def become(uid: int, gid: int, capability: int | None) -> None:
    """Change to uid and gid for good, keeping nothing of root but the one capability, if any."""
    if capability is not None:
        prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP)
        prctl(PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    if capability is not None:
        keep_only(capability)
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability)


def keep_only(capability: int) -> None:
    """Reduce the capability sets (effective, permitted, inheritable) to this one."""
    word, bit = divmod(capability, 32)
    sets = [0] * 6  # two words of (effective, permitted, inheritable)
    sets[word * 3 : word * 3 + 3] = [1 << bit] * 3
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    check(libc().capset(header, (ctypes.c_uint32 * 6)(*sets)), "capset")


def enter_user_namespace(uid: int, gid: int) -> None:
    """Appear to ourselves as uid:gid; to everybody else we stay who we are."""
    outside_uid, outside_gid = os.geteuid(), os.getegid()
    check(libc().unshare(CLONE_NEWUSER), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("gid_map", f"{gid} {outside_gid} 1"),
        ("uid_map", f"{uid} {outside_uid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def prctl(option: int, value: int, more: int = 0) -> None:
    """Change a property of this process; OSError on failure."""
    numbers = [ctypes.c_ulong(number) for number in (value, more, 0, 0)]
    check(libc().prctl(option, *numbers), f"prctl {option}")


def libc() -> ctypes.CDLL:
    """The C library of this process, with errno kept."""
    return ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Raise OSError for a failed C call."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    try:
        main(sys.argv)
    except (OSError, AttributeError) as error:
        sys.stderr.write(f"cannot start PostgreSQL's process: {error}\n")
        sys.exit(126)
