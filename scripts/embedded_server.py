"""Run the embedded PostgreSQL for tests: embedded_server.py DIR, until a TERM signal.

Its data lies in DIR/data; DIR/env, to be sourced by a shell, appears when the server answers.
"""

import pwd
import shlex
import signal
import sys
from pathlib import Path

import psycopg

from switchboard.datafolder import DataFolder
from switchboard.embedded import PORT, SUPERUSER, Cluster


def main(place: Path) -> None:
    data = DataFolder(place / "data")
    data.make()
    with data.locked():
        cluster = Cluster(data, lambda line: print(line, flush=True))
        try:
            cluster.start()
            # The SQL tests open second sessions by dblink: as the user who runs the server.
            server_user = pwd.getpwuid(cluster.data.stat().st_uid).pw_name
            with open(data.path / "pg_ident.conf", "a", encoding="utf-8") as idents:
                idents.write(f'switchboard "{server_user}" all\n')
            with psycopg.connect(cluster.url(SUPERUSER, "postgres"), autocommit=True) as admin:
                for setting in ("fsync", "full_page_writes"):  # thrown away after the tests
                    admin.execute(f"alter system set {setting} = off")
                admin.execute("select pg_reload_conf()")
            settings = {
                "PGHOST": str(cluster.socket_dir),
                "PGPORT": str(PORT),
                "PGUSER": SUPERUSER,
                "PGDATABASE": "postgres",
                "PGPASSWORD": "",
            }
            words = " ".join(f"{name}={shlex.quote(value)}" for name, value in settings.items())
            env = place / "env.new"
            env.write_text(f"export {words}\n")
            env.rename(place / "env")
            signal.sigwait({signal.SIGTERM, signal.SIGINT})
        finally:
            cluster.stop()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main(Path(sys.argv[1]))
