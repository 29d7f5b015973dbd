"""Run the image of db/Dockerfile for tests, by testcontainers, until a TERM signal.

docker_server.py DIR: DIR/env, to be sourced by a shell, appears when the server answers;
DIR/extension holds its SQL files (pgTAP). The image is built, on the network of
SWITCHBOARD_TEST_BUILD_NETWORK if that is set, unless SWITCHBOARD_TEST_IMAGE names one. It runs as
docker-compose.yml runs it: not as root, with a root file system that cannot be written to, without
capabilities, published on loopback only.
"""

import io
import os
import secrets
import shlex
import signal
import sys
import tarfile
import time
from contextlib import ExitStack
from pathlib import Path

# Its keeper of leftovers would be one more image, with Docker's socket: what is made here is
# removed here.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")

import psycopg
from psycopg.conninfo import make_conninfo
from testcontainers.core.container import DockerContainer
from testcontainers.core.image import DockerImage

ROOT = Path(__file__).resolve().parents[1]
CRON_DATABASE = "switchboard_cron"
HARDENED = {
    "read_only": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
    "shm_size": "256m",
    "stop_signal": "SIGINT",
}
EXTENSIONS = "/usr/share/postgresql/17/extension"
SECONDS = 120


def container(image: str, password: str) -> DockerContainer:
    """The container, not started."""
    made = DockerContainer(image)
    made.with_envs(POSTGRES_PASSWORD=password, POSTGRES_DB=CRON_DATABASE)
    made.with_command(
        ["-c", "max_connections=200", "-c", "fsync=off", "-c", "full_page_writes=off"]
    )
    made.with_kwargs(**HARDENED)
    made.with_tmpfs_mount("/tmp")
    made.with_tmpfs_mount("/run/postgresql", "size=1m,uid=999,gid=999")
    # Any free port of loopback; with_exposed_ports would take one of every address.
    made.ports["5432/tcp"] = ("127.0.0.1",)
    return made


def wait(server: DockerContainer, dsn: str) -> None:
    """Until it takes connections; its first start goes through a server that takes none."""
    end = time.monotonic() + SECONDS
    while True:
        try:
            psycopg.connect(dsn, connect_timeout=2).close()
        except psycopg.OperationalError:
            inner = server.get_wrapped_container()
            inner.reload()
            if inner.status != "running" or time.monotonic() > end:
                sys.exit("the container did not come up:\n" + inner.logs(tail=10).decode())
            time.sleep(0.2)
        else:
            return


def main(place: Path) -> None:
    password = secrets.token_hex(16)
    with ExitStack() as stack:
        image = os.environ.get("SWITCHBOARD_TEST_IMAGE")
        if not image:
            image = "switchboard-postgres:test"
            network = {"network_mode": os.environ.get("SWITCHBOARD_TEST_BUILD_NETWORK")}
            stack.enter_context(DockerImage(ROOT / "db", tag=image, clean_up=False, **network))
        server = stack.enter_context(container(image, password))
        settings = {
            "PGHOST": "127.0.0.1",
            "PGPORT": str(server.get_exposed_port(5432)),
            "PGUSER": "postgres",
            "PGDATABASE": "postgres",
            "PGPASSWORD": password,
        }
        wait(
            server,
            make_conninfo(
                host=settings["PGHOST"],
                port=settings["PGPORT"],
                user=settings["PGUSER"],
                dbname=settings["PGDATABASE"],
                password=password,
            ),
        )
        # The SQL tests open second sessions by dblink, as any login, inside the container.
        trust = 'sed -i "1i local all all trust" "$PGDATA/pg_hba.conf" && pg_ctl reload -s'
        if (done := server.exec(["sh", "-c", trust])).exit_code:
            sys.exit(done.output.decode())
        archive, _ = server.get_wrapped_container().get_archive(EXTENSIONS)
        with tarfile.open(fileobj=io.BytesIO(b"".join(archive))) as files:
            files.extractall(place, filter="data")
        # A dump of this server is made by its own pg_dump: the one of another build may know less.
        inside = server.get_wrapped_container().id
        settings["SWITCHBOARD_TEST_PG_DUMP"] = f"docker exec {inside} pg_dump -U postgres"
        words = " ".join(f"{name}={shlex.quote(value)}" for name, value in settings.items())
        env = place / "env.new"
        env.write_text(f"export {words}\n")
        env.rename(place / "env")
        signal.pause()


def end(number: int, _: object) -> None:
    """Leave, so that the container is removed; once."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    main(Path(sys.argv[1]))
