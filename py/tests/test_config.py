"""Settings: what is accepted, what a refusal says, what never shows."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from switchboard.config import ConfigError, Settings, parse_secret_keys

KEY = base64.b64encode(bytes(range(32))).decode()


def test_defaults_are_the_documented_numbers() -> None:
    settings = Settings.from_env({})
    assert (settings.host, settings.port) == ("127.0.0.1", 8460)
    assert settings.public_url == "http://127.0.0.1:8460"
    assert (settings.mcp_rate, settings.mcp_burst) == (200, 400)
    assert (settings.webhook_rate, settings.webhook_burst) == (50, 200)
    assert (settings.failure_rate, settings.failure_burst) == (10, 50)
    assert (settings.mcp_body_limit, settings.webhook_body_limit) == (1 << 20, 5 << 20)
    assert settings.data_dir == Path(".switchboard")
    assert settings.prepare_statements
    assert not settings.outbound_http
    assert (settings.outbound_private, settings.outbound_ports) == ((), (443, 8443))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "http"),
        ("PORT", "70000"),
        ("PORT", "-1"),
        ("POOL_SIZE", "0"),
        ("MCP_RATE", "nan"),
        ("MCP_RATE", "inf"),
        ("PUBLIC_URL", "queue.example.org"),
        ("PUBLIC_URL", "ftp://queue.example.org"),
        ("PUBLIC_URL", "http://[queue"),
        ("PREPARE_STATEMENTS", "perhaps"),
        ("LOG_FORMAT", "xml"),
        ("LOG_LEVEL", "loud"),
        ("SECRET_KEY", "dG9vIHNob3J0"),
        ("SECRET_KEY", "not base64 at all!"),
        ("DATABASE_URL", "host=x no-equals-sign"),
        ("LISTEN_URL", "postgresql://u:p@[::1/x"),
        ("AUTH_CACHE", "6"),
        ("OUTBOUND_HTTP", "sometimes"),
        ("OUTBOUND_PRIVATE", "localhost"),
        ("OUTBOUND_PRIVATE", "127.0.0.1/8"),
        ("OUTBOUND_PRIVATE", "10.0.0.0/8, 10.0.0/8"),
        ("OUTBOUND_PORTS", "443,https"),
        ("OUTBOUND_PORTS", "0"),
        ("OUTBOUND_PORTS", "65536"),
        ("OUTBOUND_PORTS", "9" * 5000),
        ("OUTBOUND_PORTS", "-443"),
        ("OUTBOUND_PORTS", "٤٤٣"),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Settings.from_env({f"SWITCHBOARD_{name}": value})
    assert f"SWITCHBOARD_{name}" in str(refused.value)
    assert "expected" in str(refused.value) or "must be" in str(refused.value)


def test_no_secret_shows_in_repr_or_refusal() -> None:
    settings = Settings.from_env(
        {
            "SWITCHBOARD_DATABASE_URL": "postgresql://me:hunter2@db/x",
            "SWITCHBOARD_SECRET_KEY": KEY,
            "SWITCHBOARD_METRICS_TOKEN": "metrics-hunter2",
        }
    )
    assert "hunter2" not in repr(settings)
    assert "\\x01" not in repr(settings)
    with pytest.raises(ConfigError) as refused:
        Settings.from_env({"SWITCHBOARD_DATABASE_URL": "postgresql://me:hunter2@db:port:x/y?z"})
    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_secret_keys_in_either_alphabet_and_any_number() -> None:
    high = bytes([255] * 32)
    text = f"{KEY}, {base64.urlsafe_b64encode(high).decode().rstrip('=')}"
    assert parse_secret_keys(text) == (bytes(range(32)), high)
    assert parse_secret_keys(base64.b64encode(high).decode()) == (high,)
    assert parse_secret_keys(" ") == ()


def test_listen_url_is_the_database_url_unless_set() -> None:
    env = {"SWITCHBOARD_DATABASE_URL": "postgresql://pooler/x"}
    assert Settings.from_env(env).listen_url == "postgresql://pooler/x"
    env["SWITCHBOARD_LISTEN_URL"] = "postgresql://direct/x"
    assert Settings.from_env(env).listen_url == "postgresql://direct/x"


def test_the_drivers_scheme_of_other_tools_is_understood() -> None:
    settings = Settings.from_env({"SWITCHBOARD_DATABASE_URL": "postgresql+psycopg://u@h/d"})
    assert settings.database_url == "postgresql://u@h/d"


def test_hosts_and_origins_follow_from_the_addresses() -> None:
    settings = Settings.from_env({"SWITCHBOARD_PUBLIC_URL": "https://queue.example.org/"})
    assert settings.public_url == "https://queue.example.org"
    assert {"queue.example.org", "127.0.0.1:8460", "localhost:8460"} <= set(settings.allowed_hosts)
    assert "https://queue.example.org" in settings.allowed_origins
    assert "evil.example" not in settings.allowed_hosts


def test_a_free_port_changes_what_follows_from_it_and_nothing_else() -> None:
    settings = Settings.from_env({"SWITCHBOARD_PORT": "0"}).with_port(5000)
    assert settings.public_url == "http://127.0.0.1:5000"
    assert "127.0.0.1:5000" in settings.allowed_hosts
    assert not any(host.endswith(":0") for host in settings.allowed_hosts)
    chosen = {"SWITCHBOARD_PORT": "0", "SWITCHBOARD_ALLOWED_HOSTS": "a.example b.example,c.example"}
    kept = Settings.from_env({**chosen, "SWITCHBOARD_PUBLIC_URL": "https://a.example"})
    assert kept.with_port(5000).allowed_hosts == ("a.example", "b.example", "c.example")
    assert kept.with_port(5000).public_url == "https://a.example"


def test_outbound_lists_have_commas_or_spaces() -> None:
    settings = Settings.from_env(
        {
            "SWITCHBOARD_OUTBOUND_HTTP": "yes",
            "SWITCHBOARD_OUTBOUND_PRIVATE": "127.0.0.0/8, ::1 10.1.2.3",
            "SWITCHBOARD_OUTBOUND_PORTS": "443,9000 9001",
        }
    )
    assert settings.outbound_http
    assert settings.outbound_private == ("127.0.0.0/8", "::1/128", "10.1.2.3/32")
    assert settings.outbound_ports == (443, 9000, 9001)


def test_log_format_is_for_programs_where_no_person_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    assert Settings.from_env({}).log_format == "json"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert Settings.from_env({}).log_format == "text"
    assert Settings.from_env({"SWITCHBOARD_LOG_FORMAT": "json"}).log_format == "json"


PROVIDER = {
    "SWITCHBOARD_OIDC_ISSUER": "https://id.example.org/realm",
    "SWITCHBOARD_OIDC_CLIENT_ID": "board",
    "SWITCHBOARD_OIDC_CLIENT_SECRET": "hunter2",
}


def test_a_provider_is_three_settings_or_none(tmp_path: Path) -> None:
    settings = Settings.from_env(PROVIDER)
    assert settings.oidc_issuer == "https://id.example.org/realm"
    assert (settings.oidc_client_id, settings.oidc_client_secret) == ("board", "hunter2")
    assert settings.oidc_name == "id.example.org"
    assert "hunter2" not in repr(settings)
    named = Settings.from_env({**PROVIDER, "SWITCHBOARD_OIDC_NAME": "Example"})
    assert named.oidc_name == "Example"
    (tmp_path / "secret").write_text("from a file\n")
    file = {"SWITCHBOARD_OIDC_CLIENT_SECRET_FILE": str(tmp_path / "secret")}
    kept = {name: value for name, value in PROVIDER.items() if not name.endswith("SECRET")}
    assert Settings.from_env({**kept, **file}).oidc_client_secret == "from a file"
    assert Settings.from_env({}).oidc_issuer == Settings.from_env({}).oidc_name == ""
    for missing in PROVIDER:
        with pytest.raises(ConfigError, match="SWITCHBOARD_OIDC_CLIENT_SECRET"):
            Settings.from_env({**PROVIDER, missing: ""})


def test_a_provider_is_asked_over_https_but_on_this_machine() -> None:
    for issuer in ("http://id.example.org", "ftp://id.example.org", "id.example.org", "http://[x"):
        with pytest.raises(ConfigError, match="SWITCHBOARD_OIDC_ISSUER"):
            Settings.from_env({**PROVIDER, "SWITCHBOARD_OIDC_ISSUER": issuer})
    local = {**PROVIDER, "SWITCHBOARD_OIDC_ISSUER": "http://127.0.0.1:8080"}
    assert Settings.from_env(local).oidc_issuer == "http://127.0.0.1:8080"
