"""Settings: everything that may differ between two installations, read from ``SWITCHBOARD_*``.

``Settings.from_env()`` reads the environment once; the result is frozen and passed on. Nothing
else in the package reads an environment variable. A value that cannot be used raises
``ConfigError`` whose text names the variable and says what would be accepted; it never repeats a
value that may be secret. Secrets are left out of ``repr``.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8460
DEFAULT_DATA_DIR = Path(".switchboard")
DEFAULT_OUTBOUND_PORTS = (443, 8443)
SECRET_KEY_BYTES = 32
LOOPBACK = ("127.0.0.1", "localhost", "::1")

N = TypeVar("N", int, float)


class ConfigError(ValueError):
    """A setting that cannot be used; the message names it and says what would be accepted."""


@dataclass(frozen=True)
class Settings:
    """What one process needs to know. Times are in seconds, rates in calls per second.

    Attributes:
        database_url: libpq URL or DSN of the database; empty when none is configured, and the
            embedded PostgreSQL of ``data_dir`` is meant.
        listen_url: a direct DSN for LISTEN (a transaction pooler cannot carry it); the
            database_url unless set.
        public_url: what people and senders outside see, without a trailing slash.
        host, port: the address to listen on; port 0 is any free one.
        secret_keys: 32 raw bytes each; the first seals, all open. Empty: nothing can be sealed.
        data_dir: folder of the embedded database, key and first credentials.
        allowed_hosts: exact Host header values that are served; others are answered 421.
        allowed_origins: exact Origin header values that are served; others are answered 403.
        trusted_proxies: addresses whose X-Forwarded-* headers are believed.
        pool_size: database connections of this process, the listener's not counted.
        pool_wait: how long a request may wait for one of them before it is answered 503.
        prepare_statements: false behind a transaction pooler such as PgBouncer; one that is not
            named so is recognised.
        mcp_rate, mcp_burst: tool calls per endpoint.
        webhook_rate, webhook_burst: deliveries per receiver.
        failure_rate, failure_burst: refused authentications per client address.
        outbound_http: whether hooks may be called over http, without TLS.
        outbound_private: networks that hooks may be in although they are not public.
        outbound_ports: the ports that hooks may be called at.
        mcp_body_limit, webhook_body_limit: bytes.
        auth_cache: how long an authentication may be reused before the database is asked again.
        tick_interval: the server sweeps when the last sweep is older than this.
        max_sessions: MCP sessions of this process.
        endpoint_sessions: MCP sessions of one endpoint.
        board_streams: live boards that may be open at a time, of all people.
        mcp_handshake_only: refuse MCP versions without sessions, on which nothing can be pushed.
        session_idle_timeout: an MCP session without traffic ends after this.
        shutdown_timeout: how long open requests may take to end after SIGTERM.
        log_format: ``json`` or ``text``.
        log_level: ``debug``, ``info``, ``warning`` or ``error``.
        metrics_token: bearer token of /metrics; empty turns the route off.
        oidc_issuer: of the OpenID provider that people may sign in with; empty: there is none.
        oidc_name: what the button that leads there says.
        oidc_client_id, oidc_client_secret: what the provider calls this server.
    """

    database_url: str = field(default="", repr=False)
    listen_url: str = field(default="", repr=False)
    public_url: str = f"http://{DEFAULT_HOST}:{DEFAULT_PORT}"
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    secret_keys: tuple[bytes, ...] = field(default=(), repr=False)
    data_dir: Path = DEFAULT_DATA_DIR
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    pool_size: int = 10
    pool_wait: float = 5.0
    prepare_statements: bool = True
    mcp_rate: float = 200.0
    mcp_burst: int = 400
    webhook_rate: float = 50.0
    webhook_burst: int = 200
    failure_rate: float = 10.0
    failure_burst: int = 50
    outbound_http: bool = False
    outbound_private: tuple[str, ...] = ()
    outbound_ports: tuple[int, ...] = DEFAULT_OUTBOUND_PORTS
    mcp_body_limit: int = 1024 * 1024
    webhook_body_limit: int = 5 * 1024 * 1024
    auth_cache: float = 5.0
    tick_interval: float = 30.0
    max_sessions: int = 10_000
    endpoint_sessions: int = 256
    board_streams: int = 500
    mcp_handshake_only: bool = True
    session_idle_timeout: float = 600.0
    shutdown_timeout: float = 3.0
    log_format: str = "json"
    log_level: str = "info"
    metrics_token: str = field(default="", repr=False)
    oidc_issuer: str = ""
    oidc_name: str = ""
    oidc_client_id: str = ""
    oidc_client_secret: str = field(default="", repr=False)

    def with_port(self, port: int) -> Settings:
        """The same settings once port 0 became a real one; what follows from it is derived anew."""
        old = f"http://{_display_host(self.host)}:{self.port}"
        new = f"http://{_display_host(self.host)}:{port}"
        hosts = _own_hosts(self.host, self.port, self.public_url)
        origins = _own_origins(self.host, self.port, self.public_url)
        return dataclasses.replace(
            self,
            port=port,
            public_url=new if self.public_url == old else self.public_url,
            allowed_hosts=() if self.allowed_hosts == hosts else self.allowed_hosts,
            allowed_origins=() if self.allowed_origins == origins else self.allowed_origins,
        )

    def __post_init__(self) -> None:
        """Fill what follows from other fields, for settings that are built by hand, too."""
        fill = object.__setattr__
        if not self.oidc_name:
            fill(self, "oidc_name", urlsplit(self.oidc_issuer).netloc)
        if not self.listen_url:
            fill(self, "listen_url", self.database_url)
        fill(self, "public_url", self.public_url.rstrip("/"))
        if not self.allowed_hosts:
            fill(self, "allowed_hosts", _own_hosts(self.host, self.port, self.public_url))
        if not self.allowed_origins:
            fill(self, "allowed_origins", _own_origins(self.host, self.port, self.public_url))

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read the settings.

        Args:
            env: the variables to read; the process environment when None.

        Raises:
            ConfigError: a variable holds a value that cannot be used.
        """
        read = _Reader(os.environ if env is None else env)
        host = read.text("HOST", DEFAULT_HOST)
        port = read.integer("PORT", DEFAULT_PORT, 0, 65535)
        return cls(
            database_url=read.database("DATABASE_URL"),
            listen_url=read.database("LISTEN_URL"),
            public_url=read.url("PUBLIC_URL", f"http://{_display_host(host)}:{port}"),
            host=host,
            port=port,
            secret_keys=parse_secret_keys(read.secret("SECRET_KEY")),
            data_dir=Path(read.text("DATA", str(DEFAULT_DATA_DIR))).expanduser(),
            allowed_hosts=read.words("ALLOWED_HOSTS"),
            allowed_origins=read.words("ALLOWED_ORIGINS"),
            trusted_proxies=read.words("TRUSTED_PROXIES"),
            pool_size=read.integer("POOL_SIZE", 10, 1, 1000),
            pool_wait=read.number("POOL_WAIT", 5.0, 0.1, 300),
            prepare_statements=read.flag("PREPARE_STATEMENTS", True),
            mcp_rate=read.number("MCP_RATE", 200.0, 0.01, 1e6),
            mcp_burst=read.integer("MCP_BURST", 400, 1, 1_000_000),
            webhook_rate=read.number("WEBHOOK_RATE", 50.0, 0.01, 1e6),
            webhook_burst=read.integer("WEBHOOK_BURST", 200, 1, 1_000_000),
            failure_rate=read.number("FAILURE_RATE", 10.0, 0.01, 1e6),
            failure_burst=read.integer("FAILURE_BURST", 50, 1, 1_000_000),
            outbound_http=read.flag("OUTBOUND_HTTP", False),
            outbound_private=read.networks("OUTBOUND_PRIVATE"),
            outbound_ports=read.ports("OUTBOUND_PORTS", DEFAULT_OUTBOUND_PORTS),
            mcp_body_limit=read.integer("MCP_BODY_LIMIT", 1024 * 1024, 1024, 1 << 28),
            webhook_body_limit=read.integer("WEBHOOK_BODY_LIMIT", 5 * 1024 * 1024, 1024, 1 << 28),
            auth_cache=read.number("AUTH_CACHE", 5.0, 0, 5.0),
            tick_interval=read.number("TICK_INTERVAL", 30.0, 1, 3600),
            max_sessions=read.integer("MAX_SESSIONS", 10_000, 1, 1_000_000),
            endpoint_sessions=read.integer("ENDPOINT_SESSIONS", 256, 1, 1_000_000),
            board_streams=read.integer("BOARD_STREAMS", 500, 1, 100_000),
            mcp_handshake_only=read.flag("MCP_HANDSHAKE_ONLY", True),
            session_idle_timeout=read.number("SESSION_IDLE_TIMEOUT", 600.0, 1, 604_800),
            shutdown_timeout=read.number("SHUTDOWN_TIMEOUT", 3.0, 0.1, 300),
            log_format=read.log_format(),
            log_level=read.choice("LOG_LEVEL", "info", ("debug", "info", "warning", "error")),
            metrics_token=read.secret("METRICS_TOKEN"),
            **read.provider(),
        )


def parse_secret_keys(text: str) -> tuple[bytes, ...]:
    """Decode SWITCHBOARD_SECRET_KEY: one or more base64 keys, separated by commas or spaces.

    Returns:
        The keys, 32 raw bytes each, in the order given.

    Raises:
        ConfigError: a part is not base64 (or base64url) of exactly 32 bytes.
    """
    keys = []
    for part in text.replace(",", " ").split():
        plain = part.rstrip("=").replace("+", "-").replace("/", "_")
        try:
            key = base64.b64decode(plain + "=" * (-len(plain) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != SECRET_KEY_BYTES:
            raise ConfigError(
                "SWITCHBOARD_SECRET_KEY: each key must be base64 of 32 random bytes. "
                "Make one with: openssl rand -base64 32"
            )
        keys.append(key)
    return tuple(keys)


class _Reader:
    """Typed look-ups of ``SWITCHBOARD_<name>``; an empty value counts as unset."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def text(self, name: str, default: str) -> str:
        return self._env.get(f"SWITCHBOARD_{name}", "").strip() or default

    def secret(self, name: str) -> str:
        """The value, or what is in the file that SWITCHBOARD_<name>_FILE names."""
        value, path = self.text(name, ""), self.text(f"{name}_FILE", "")
        if not path:
            return value
        if value:
            raise ConfigError(f"Set SWITCHBOARD_{name} or SWITCHBOARD_{name}_FILE, not both.")
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise ConfigError(f"SWITCHBOARD_{name}_FILE: {path} cannot be read ({why}).") from None

    def words(self, name: str) -> tuple[str, ...]:
        return tuple(self.text(name, "").replace(",", " ").split())

    def networks(self, name: str) -> tuple[str, ...]:
        words = self.words(name)
        try:
            return tuple(str(ip_network(word)) for word in words)
        except ValueError:
            raise ConfigError(
                f"SWITCHBOARD_{name}: networks such as 127.0.0.0/8 or 10.1.2.3 are expected."
            ) from None

    def ports(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        words = self.words(name)
        if not all(re.fullmatch("[0-9]{1,5}", word) and 0 < int(word) < 65536 for word in words):
            raise ConfigError(f"SWITCHBOARD_{name}: ports from 1 to 65535 are expected.")
        return tuple(int(word) for word in words) or default

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        value = self.text(name, default).lower()
        if value not in allowed:
            raise ConfigError(f"SWITCHBOARD_{name}: one of {', '.join(allowed)} is expected.")
        return value

    def log_format(self) -> str:
        """``auto`` is text for a person at a terminal, else json."""
        chosen = self.choice("LOG_FORMAT", "auto", ("auto", "json", "text"))
        return chosen if chosen != "auto" else "text" if sys.stderr.isatty() else "json"

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name, "true" if default else "false").lower()
        if value in ("1", "true", "yes", "on"):
            return True
        if value in ("0", "false", "no", "off"):
            return False
        raise ConfigError(f"SWITCHBOARD_{name}: true or false is expected.")

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        return self._ranged(name, default, low, high, int, "a whole number")

    def number(self, name: str, default: float, low: float, high: float) -> float:
        return self._ranged(name, default, low, high, float, "a number")

    def _ranged(
        self, name: str, default: N, low: N, high: N, parse: Callable[[str], N], what: str
    ) -> N:
        text = self.text(name, "")
        if not text:
            return default
        try:
            value = parse(text)
        except ValueError:
            value = low - 1  # refused below, like any value out of range
        if not low <= value <= high:
            raise ConfigError(f"SWITCHBOARD_{name}: {what} from {low} to {high} is expected.")
        return value

    def url(self, name: str, default: str) -> str:
        value = self.text(name, default)
        try:
            parts = urlsplit(value)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ConfigError(
                f"SWITCHBOARD_{name}: an address such as https://queue.example.org is expected."
            )
        return value

    def provider(self) -> dict[str, str]:
        """The OpenID provider: its three settings, or none of them."""
        issuer, name = self.text("OIDC_ISSUER", ""), self.text("OIDC_NAME", "")
        client_id, secret = self.text("OIDC_CLIENT_ID", ""), self.secret("OIDC_CLIENT_SECRET")
        if not (issuer or client_id or secret):
            return {}
        if not (issuer and client_id and secret):
            raise ConfigError(
                "SWITCHBOARD_OIDC_ISSUER, SWITCHBOARD_OIDC_CLIENT_ID and "
                "SWITCHBOARD_OIDC_CLIENT_SECRET are expected together."
            )
        parts = urlsplit(self.url("OIDC_ISSUER", ""))
        if parts.scheme != "https" and parts.hostname not in LOOPBACK:
            raise ConfigError("SWITCHBOARD_OIDC_ISSUER: an https address is expected.")
        return {
            "oidc_issuer": issuer,
            "oidc_name": name,
            "oidc_client_id": client_id,
            "oidc_client_secret": secret,
        }

    def database(self, name: str) -> str:
        value = self.text(name, "")
        # yoyo and SQLAlchemy write the driver into the scheme; libpq does not know that form.
        value = value.replace("postgresql+psycopg://", "postgresql://", 1)
        try:
            conninfo_to_dict(value)
        except ProgrammingError:
            raise ConfigError(
                f"SWITCHBOARD_{name}: a PostgreSQL address such as "
                "postgresql://user@host:5432/database is expected."
            ) from None  # the driver's text may quote the password
        return value


def _display_host(host: str) -> str:
    """The host as it stands in a URL: IPv6 in brackets, a wildcard address as loopback."""
    if host in ("0.0.0.0", "::", ""):  # noqa: S104 (compared, not bound)
        return DEFAULT_HOST
    return f"[{host}]" if ":" in host else host


def _own_hosts(host: str, port: int, public_url: str) -> tuple[str, ...]:
    names = {_display_host(host), "127.0.0.1", "localhost", "[::1]"}
    hosts = {f"{name}:{port}" for name in names}
    if port in (80, 443):
        hosts |= names
    hosts.add(urlsplit(public_url).netloc.rpartition("@")[2])
    return tuple(sorted(hosts))


def _own_origins(host: str, port: int, public_url: str) -> tuple[str, ...]:
    parts = urlsplit(public_url)
    own = {f"http://{name}:{port}" for name in (_display_host(host), "127.0.0.1", "localhost")}
    return tuple(sorted(own | {f"{parts.scheme}://{parts.netloc}"}))
