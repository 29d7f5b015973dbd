"""A run with every secret there is, over every way in, and all that was logged meanwhile.

Whoever reads logs is not whoever may hold secrets. So a server runs with its log at debug, on a
PostgreSQL of its own that is set as somebody would set it who wants to see everything, and each
secret that is made or sent is kept here, to be looked for afterwards. Requests come with secrets
where they belong, where they do not, and while things fail.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import quote

import httpx2
import psycopg
from conftest import Sql, free_port, until
from hook_kit import Arrival, HookReceiver, allowing_in_env, receiving
from oidc_kit import CLIENT_ID, CLIENT_SECRET, Issuer
from psycopg.conninfo import conninfo_to_dict

from switchboard.cli import main
from switchboard.datafolder import DataFolder
from switchboard.embedded import Cluster
from switchboard.embedded_make import SUPERUSER
from switchboard.migrate import migrate

# What somebody sets who wants to see everything; the first with parameters, as PostgreSQL has it.
SEE_ALL = {
    "log_statement": "all",
    "log_min_duration_statement": "0",
    "log_min_messages": "debug1",
    "log_error_verbosity": "verbose",
    "log_connections": "on",
    "log_parameter_max_length": "-1",
    "log_parameter_max_length_on_error": "-1",
}
MARK = "a mark in what was delivered"
CHANNELS = ("todo_ready", "switchboard_control", "switchboard_outbox")


class Run:
    """A server process, its PostgreSQL, and what must not be found in what they write.

    Attributes:
        secrets: by what each is.
        payloads: what is in arguments of calls, which the server's log has nothing of, but
            PostgreSQL's has when it is set so.
        shown: what commands wrote, without the answers that show a secret once.
        heard: the payloads of all notifications.
    """

    def __init__(self, folder: Path, cluster: Cluster, issuer: Issuer, hook: HookReceiver) -> None:
        self.folder, self.cluster, self.issuer, self.hook = folder, cluster, issuer, hook
        self.secrets: dict[str, str] = {
            "password": "pass" + secrets.token_hex(12),
            "sealing key": base64.b64encode(secrets.token_bytes(32)).decode(),
            "metrics token": secrets.token_urlsafe(24),
            "client secret": CLIENT_SECRET,
        }
        self.payloads = {"a delivery": MARK}
        self.shown: list[str] = []
        self.heard: list[str] = []
        plain = conninfo_to_dict(cluster.url(SUPERUSER, "postgres"))
        place = f"host={quote(str(plain['host']), safe='')}&port={plain['port']}"
        self.dsn = f"postgresql://{SUPERUSER}:{self.secrets['password']}@/postgres?{place}"
        migrate(self.dsn, self.shown.append)
        self.db = Sql(self.dsn)
        self.set(**SEE_ALL)
        for channel in CHANNELS:
            self.db.rows(f"listen {channel}")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.env = {
            "SWITCHBOARD_DATABASE_URL": self.dsn,
            "SWITCHBOARD_PORT": str(port),
            "SWITCHBOARD_SECRET_KEY": self.secrets["sealing key"],
            "SWITCHBOARD_METRICS_TOKEN": self.secrets["metrics token"],
            "SWITCHBOARD_OIDC_ISSUER": issuer.url,
            "SWITCHBOARD_OIDC_CLIENT_ID": CLIENT_ID,
            "SWITCHBOARD_OIDC_CLIENT_SECRET": CLIENT_SECRET,
            "SWITCHBOARD_LOG_LEVEL": "debug",
            "SWITCHBOARD_LOG_FORMAT": "json",
            "SWITCHBOARD_SHUTDOWN_TIMEOUT": "1",
            "SWITCHBOARD_FAILURE_BURST": "100000",
            "NO_COLOR": "1",
            **allowing_in_env(hook),
        }
        self.log = folder / "server.log"
        with self.log.open("wb") as output:
            self.server = subprocess.Popen(
                [sys.executable, "-m", "switchboard", "serve"],
                env={**os.environ, **self.env}, stdout=output, stderr=output,
            )  # fmt: skip
        until(self._answers, "the server answers", 30)

    def _answers(self) -> bool:
        with contextlib.suppress(httpx2.TransportError):
            return httpx2.get(f"{self.url}/readyz").status_code == 200
        return False

    def set(self, **settings: str) -> None:
        """Change settings of PostgreSQL for everybody."""
        for name, value in settings.items():
            self.db.rows(f"alter system set {name} = '{value}'")
        self.db.rows("select pg_reload_conf()")
        for name, value in settings.items():  # in sessions that are new
            until(partial(self._is_set, name, value), name)

    def _is_set(self, name: str, value: str) -> bool:
        with psycopg.connect(self.dsn, autocommit=True) as other:
            query = "select setting = %s from pg_settings where name = %s"
            row = other.execute(query, [value, name]).fetchone()
        return bool(row and row[0])

    def keep(self, what: str, value: str) -> str:
        """A secret that must not be found later."""
        assert len(value) > 7, what
        self.secrets[f"{what} {len(self.secrets)}"] = value
        return value

    def command(self, *words: str, shows: bool = False) -> Any:
        """Run a command; what it answers, if it is JSON. One that shows a secret once says so."""
        out, err = io.StringIO(), io.StringIO()
        with (
            mock.patch.dict(os.environ, self.env),
            redirect_stdout(out),
            redirect_stderr(err),
            contextlib.suppress(SystemExit),
        ):
            main([*words, "--json"])
        self.shown += [err.getvalue()] if shows else [err.getvalue(), out.getvalue()]
        with contextlib.suppress(ValueError):
            return json.loads(out.getvalue())
        return out.getvalue()

    def end(self) -> None:
        """Stop the server, and hear what was still to be heard."""
        self.server.terminate()
        self.server.wait(15)
        self.heard += [note.payload for note in self.db.connection.notifies(timeout=0.2)]

    def written(self) -> dict[str, str]:
        """All that may be read by whom the secrets are not for, by where it is."""
        logs = {str(path): path for path in self.folder.rglob("*.log")}
        assert any("postgresql-" in name for name in logs), logs
        texts = {name: path.read_text(errors="replace") for name, path in logs.items()}
        return {**texts, "commands": "\n".join(self.shown), "notes": "\n".join(self.heard)}

    def stored(self) -> str:
        """Every row of every table, as text, and bytes as the text that they may be."""
        tables = self.db.rows(
            "select c.oid::regclass::text as name from pg_class c"
            " where c.relnamespace = 'switchboard'::regnamespace and c.relkind = 'r'"
        )
        self.db.rows("set bytea_output = 'escape'")
        found = [self.db.rows(f"select t::text from {table['name']} t") for table in tables]
        return "\n".join(row["t"] for rows in found for row in rows)


def hangs_up(handler: BaseHTTPRequestHandler, _: Arrival) -> None:
    """Answers nothing: a call that has failed, and is logged."""
    handler.close_connection = True


@contextlib.contextmanager
def running() -> Iterator[Run]:
    """A run, for the time of the block."""
    with tempfile.TemporaryDirectory(prefix="sb-log-") as folder, receiving(hangs_up) as hook:
        data, issuer = DataFolder(Path(folder) / "data"), Issuer()
        data.make()
        issuer.start()
        with data.locked():
            cluster = Cluster(data, lambda _: None)
            cluster.start()
            try:
                run = Run(Path(folder), cluster, issuer, hook)
                with run.db.connection:
                    yield run
                    if run.server.poll() is None:
                        run.end()
            finally:
                cluster.stop()
                issuer.stop()
