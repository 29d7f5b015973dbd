import json
import logging
import sys

import pytest

from switchboard import logs
from switchboard.config import Settings

SECRETS = ["sbk_" + "a" * 43, "sbo_" + "B-_9" * 10, "whsec_c2VjcmV0c2VjcmV0"]


@pytest.fixture
def _root():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def last(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.usefixtures("_root")
def test_an_event_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(Settings())
    logs.event("mcp.call", endpoint="alpha", outcome="ok", ms=1.5)
    line = json.loads(last(capsys))
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "event": "mcp.call",
        "endpoint": "alpha",
        "outcome": "ok",
        "ms": 1.5,
    }


@pytest.mark.usefixtures("_root")
@pytest.mark.parametrize("form", ["json", "text"])
def test_what_looks_like_a_secret_is_masked(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(Settings(log_format=form))
    token = "dGhlIHRva2Vu-dGhlIHRva2Vu_"
    texts = [*SECRETS, f"POST /webhooks/w/{token} HTTP/1.1"]
    logging.getLogger("some.library").warning("%s", " ".join(texts))
    try:
        raise ValueError(SECRETS[0])
    except ValueError:
        logging.getLogger("some.library").exception("failed")
    written = capsys.readouterr().err
    assert "sbk_***" in written
    assert "/webhooks/w/***" in written
    assert not [secret for secret in [*SECRETS, token] if secret in written]


@pytest.mark.usefixtures("_root")
def test_a_line_break_in_a_value_makes_no_second_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(Settings())
    logs.event("mcp.call", tool='x\n{"level": "forged"}')
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.usefixtures("_root")
def test_the_text_format_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(Settings(log_format="text"))
    logs.event("mcp.call", endpoint="alpha", outcome="ok")
    assert "mcp.call endpoint=alpha outcome=ok" in last(capsys)
    assert sys.stderr
