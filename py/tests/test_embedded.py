"""The embedded PostgreSQL: any folder, any user, any death."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from switchboard import embedded_identity, embedded_socket
from switchboard.datafolder import AlreadyRunningError, DataFolder, DataFolderError
from switchboard.embedded import SUPERUSER, Cluster, psql_line
from switchboard.embedded_identity import EmbeddedError, Identity
from switchboard.embedded_make import binaries

Until = Callable[..., object]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root's server runs as someone else")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder for data folders; sockets that lie elsewhere are removed at the end."""
    yield tmp_path
    for marker in tmp_path.rglob(embedded_socket.REMEMBERED):
        embedded_socket.forget(DataFolder(marker.parent))


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder that every user may pass, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="sb-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextlib.contextmanager
def running(path: Path, told: list[str] | None = None) -> Iterator[Cluster]:
    folder = DataFolder(path)
    folder.make()
    with folder.locked():
        cluster = Cluster(folder, (told if told is not None else []).append)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop(5)


def value(cluster: Cluster, query: str) -> str:
    with psycopg.connect(cluster.url(SUPERUSER), autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        row = cursor.fetchone() if cursor.description else None
    return str(row[0]) if row else ""


def modes(path: Path) -> dict[str, int]:
    return {str(parent): parent.stat().st_mode for parent in (path, *path.parents)}


@pytest.mark.parametrize(
    "name",
    ["plain", "with space", 'it\'s "$x" `y`; (z) & \\', "comma,comma", "ünïcode é", "deep" * 40],
)
def test_any_folder_name_survives_a_restart(place: Path, name: str) -> None:
    before = modes(place)
    with running(place / name) as cluster:
        value(cluster, "create table kept as select 42 as answer")
    with running(place / name) as cluster:
        assert value(cluster, "select answer from kept") == "42"
        assert len(os.fsencode(cluster.socket_dir / ".s.PGSQL.5432.lock")) <= 107
    assert modes(place) == before


def test_nothing_is_readable_by_others(place: Path) -> None:
    with running(place / "data") as cluster:
        cluster.folder.make_secret_key()
        assert stat.S_IMODE(cluster.socket_dir.stat().st_mode) == 0o700
        others = stat.S_IRWXO | stat.S_IRGRP | stat.S_IWGRP
        open_to_others = [
            path
            for path in (place / "data").rglob("*")
            if path.lstat().st_mode & others and not path.is_socket() and not path.is_symlink()
        ]
        assert open_to_others == []
        assert not (place / "data").stat().st_mode & others
        assert value(cluster, "show listen_addresses") == ""


def test_it_is_durable_and_keeps_utc(place: Path) -> None:
    with running(place / "data") as cluster:
        for name, wanted in (
            ("fsync", "on"),
            ("synchronous_commit", "on"),
            ("full_page_writes", "on"),
            ("data_checksums", "on"),
            ("timezone", "UTC"),
            ("server_encoding", "UTF8"),
        ):
            assert value(cluster, f"show {name}") == wanted


def test_psql_line_works_as_printed(place: Path) -> None:
    with running(place / "it's here") as cluster:
        line = psql_line(cluster.socket_dir) + " -XAtc 'select current_user'"
        run = subprocess.run(line, shell=True, capture_output=True, text=True, check=True)
        assert run.stdout.strip() == SUPERUSER


@as_root
def test_another_local_user_gets_in_nowhere(open_place: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    with running(open_place / "data") as cluster:
        change = {"uid": nobody.pw_uid, "gid": nobody.pw_gid}
        stranger = Identity(nobody.pw_uid, nobody.pw_gid, "nobody", "", change)
        psql = [binaries() / "psql", "-XAtc", "select 1", cluster.url(SUPERUSER)]
        run = subprocess.run(stranger.command(psql), capture_output=True, text=True, check=False)
        assert run.returncode != 0
        assert "Permission denied" in run.stderr
        # Even one who reaches the socket is not believed.
        socket_file = embedded_socket.files(cluster.socket_dir)[0]
        for path, mode in ((cluster.folder.path, 0o711), (cluster.socket_dir, 0o711)):
            path.chmod(mode)
        socket_file.chmod(0o777)
        run = subprocess.run(stranger.command(psql), capture_output=True, text=True, check=False)
        assert run.returncode != 0
        assert "Peer authentication failed" in run.stderr


def test_killed_postgres_is_started_again(place: Path, until: Until) -> None:
    told: list[str] = []
    with running(place / "data", told) as cluster:
        value(cluster, "create table kept as select 7 as answer")
        killed = cluster.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        until(lambda: any("up again" in line for line in told), "PostgreSQL is up again", 60)
        assert cluster.pid != killed
        assert value(cluster, "select answer from kept") == "7"


HOLDER = """
import sys, threading
from pathlib import Path
from switchboard.datafolder import DataFolder
from switchboard.embedded import Cluster
folder = DataFolder(Path(sys.argv[1]))
folder.make()
with folder.locked():
    cluster = Cluster(folder, lambda line: None)
    cluster.start()
    print(cluster.pid, flush=True)
    threading.Event().wait()
"""


@pytest.mark.parametrize("victims", [("holder",), ("postgres", "holder"), ("holder", "postgres")])
def test_killed_holder_leaves_a_folder_that_starts(place: Path, victims: tuple[str, ...]) -> None:
    data = place / "data"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(data)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        server = int(holder.stdout.readline())
        assert DataFolder(data).running() is not None
        with pytest.raises(AlreadyRunningError, match="already running"), DataFolder(data).locked():
            pass
        pids = {"holder": holder.pid, "postgres": server}
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[victim], signal.SIGKILL)
    with running(data) as cluster:
        assert value(cluster, "select 1") == "1"
        assert DataFolder(data).running() is not None
    assert DataFolder(data).running() is None


def test_server_without_its_holder_ends_by_itself(place: Path, until: Until) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(place / "data")], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        server = psutil.Process(int(holder.stdout.readline()))
        holder.kill()
    until(lambda: not server.is_running(), "the orphan has stopped", 60)


def test_stale_files_that_name_a_foreign_process_do_not_matter(place: Path) -> None:
    data = place / "data"
    with running(data) as cluster:
        socket_dir = cluster.socket_dir
    owner = (data / "postgres").stat()
    change = {"uid": owner.st_uid, "gid": owner.st_gid} if os.geteuid() == 0 else {}
    same_user = Identity(owner.st_uid, owner.st_gid, "", "", change)
    with subprocess.Popen(same_user.command(["/bin/sleep", "60"])) as foreign:
        try:
            stale = f"{foreign.pid}\n{data / 'postgres'}\n1\n5432\n{socket_dir}\n\n1 1\nready\n"
            (data / "postgres" / "postmaster.pid").write_text(stale)
            socket_file, lock_file = embedded_socket.files(socket_dir)
            socket_file.touch()
            lock_file.write_text(stale)
            with running(data) as cluster:
                assert value(cluster, "select 1") == "1"
            assert foreign.poll() is None, "a process that is not ours was stopped"
        finally:
            foreign.kill()


def test_half_made_cluster_is_made_again(place: Path) -> None:
    folder = DataFolder(place / "data")
    folder.make()
    (folder.path / "postgres.new").mkdir()
    (folder.path / "postgres.new" / "PG_VERSION").write_text("18\n")
    with running(folder.path) as cluster:
        assert value(cluster, "select 1") == "1"


def test_a_copy_leaves_the_original_alone(place: Path) -> None:
    with running(place / "comma,first") as first:
        shutil.copytree(
            place / "comma,first",
            place / "comma,copy",
            symlinks=True,
            ignore=lambda _, names: [name for name in names if name.startswith(".s.PGSQL")],
        )
        for root, folders, files in os.walk(place / "comma,copy"):
            for name in (*folders, *files):
                original = Path(root.replace("comma,copy", "comma,first"), name)
                if original.exists() and os.geteuid() == 0:
                    info = original.stat()
                    os.chown(Path(root, name), info.st_uid, info.st_gid)
        with running(place / "comma,copy") as copy:
            assert copy.socket_dir != first.socket_dir
        assert value(first, "select 1") == "1"


def test_cluster_of_another_version_is_refused_untouched(place: Path) -> None:
    with running(place / "data"):
        pass
    version = place / "data" / "postgres" / "PG_VERSION"
    version.write_text("17\n")
    with pytest.raises(EmbeddedError, match="made by PostgreSQL 17"), running(place / "data"):
        pass


def test_a_server_that_does_not_start_says_why(place: Path) -> None:
    with running(place / "data"):
        pass
    (place / "data" / "postgres" / "global" / "pg_control").unlink()
    with pytest.raises(EmbeddedError, match="did not start") as refused, running(place / "data"):
        pass
    assert "pg_control" in str(refused.value)


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (lambda path: (path.mkdir(), (path / "thesis.txt").touch()), "holds other things"),
        (lambda path: (path.mkdir(), path.chmod(0o777)), "chmod go-w"),
        (lambda path: path.touch(), "is a file"),
        (lambda path: None, "the folder above it does not exist"),
    ],
)
def test_a_folder_that_is_not_ours_is_refused(
    place: Path, prepare: Callable[[Path], object], says: str
) -> None:
    path = place / ("missing/data" if "above" in says else "data")
    prepare(path)
    before = path.stat().st_mode if path.exists() else None
    with pytest.raises(DataFolderError, match=says):
        DataFolder(path).make()
    assert (path.stat().st_mode if path.exists() else None) == before


@as_root
@pytest.mark.parametrize("number", range(4))
def test_each_way_to_run_it_as_root(
    open_place: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain, two capabilities, a user namespace; all but the first below a closed folder."""
    candidates = embedded_identity._candidates

    def only(owner: int | None) -> Iterator[Identity]:
        yield list(candidates(owner))[number]

    home = open_place / "home"
    home.mkdir()
    home.chmod(0o755 if number == 0 else 0o700)
    monkeypatch.setattr(embedded_identity, "_candidates", only)
    try:
        for _ in range(2):
            with running(home / "data") as cluster:
                assert value(cluster, "select 1") == "1"
                server = psutil.Process(cluster.pid)
                assert (server.uids().real == 0) is (number == 3)
    except EmbeddedError as error:
        if number == 0 or "Operation not permitted" not in str(error):
            raise
        pytest.skip(f"this container does not allow it: {error}")


@as_root
def test_root_goes_from_one_way_to_another(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(place / "data") as cluster:
        value(cluster, "create table kept as select 1 as answer")
    candidates = embedded_identity._candidates
    monkeypatch.setattr(
        embedded_identity, "_candidates", lambda owner: [list(candidates(owner))[-1]]
    )
    with running(place / "data") as cluster:
        assert value(cluster, "select answer from kept") == "1"
    monkeypatch.undo()
    with running(place / "data") as cluster:
        assert value(cluster, "select answer from kept") == "1"


def test_when_no_way_works_it_says_what_to_do(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Identity(os.getuid(), os.getgid(), "x", "as nobody at all", {"uid": -1, "gid": -1})
    monkeypatch.setattr(embedded_identity, "_candidates", lambda owner: [broken])
    with pytest.raises(EmbeddedError) as refused, running(place / "data"):
        pass
    assert "as nobody at all" in str(refused.value)
    assert "SWITCHBOARD_DATABASE_URL" in str(refused.value)
