"""What happens in the run of security_server.py: secrets where they belong, and where they do not.

Each function is one way in, with what is right, what is wrong, and what fails on the way.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import time
from typing import Any
from unittest import mock
from urllib.parse import parse_qs, quote, urlsplit

import httpx2
from conftest import Endpoint, RawSession, until
from intake_kit import SIGNED, document, key_of, names, proof
from security_server import MARK, Run

FILE_SECRET = "a file's secret, given with @"


def by_command(run: Run) -> tuple[str, Endpoint]:
    """An operator at a shell: the human's token, and the endpoint."""
    token = run.command("human", "add", "ada", shows=True)["token"]
    run.keep("token", token)
    made = run.command("endpoint", "vend", "alpha", "-q", "inbox", shows=True)
    endpoint = Endpoint(made["endpoint_id"], "alpha", made["credential"])
    run.keep("first credential", endpoint.credential)
    rotated = run.command("endpoint", "rotate", "alpha", shows=True)
    endpoint.credential = run.keep("credential", rotated["credential"])
    verbs = [row["name"] for row in run.db.rows("select name from switchboard.tools()")]
    types = [
        row["t"] for row in run.db.rows("select source_type as t from switchboard.source_types()")
    ]
    grant = "select switchboard.set_grant(%s, null, %s, 1000, %s)"
    run.db.rows(grant, endpoint.id, verbs, types)
    (run.folder / "given").write_text(run.keep("given at a shell", FILE_SECRET))
    for more in ((), ("--signing-secret", f"@{run.folder / 'given'}")):
        made = run.command("webhook", "create", "alpha", "-q", "inbox", *more, shows=True)
        run.keep("address", made["ingest_url"].rpartition("/")[2])
        run.keep("signing secret", made["signing_secret"])
    run.keep(
        "hook's secret",
        run.command("hook", "create", "alpha", run.hook.url, shows=True)["signing_secret"],
    )
    run.keep("link", run.command("human", "login", "ada", shows=True)["url"].rpartition("/")[2])
    return token, endpoint


def commands_that_look(run: Run) -> None:
    """Whatever lists what there is, and what is refused."""
    for line in (
        "human list", "human token list ada", "human sessions", "endpoint list", "doctor",
        "endpoint show alpha", "webhook list", "hook list", "todo list", "event list", "health",
        "queue list", "human login nobody", "endpoint rotate nobody",
    ):  # fmt: skip
        run.command(*line.split())
    away = (
        "postgresql://u:"
        + run.keep("wrong password", "w" + secrets.token_hex(9))
        + "@127.0.0.1:1/x"
    )
    with mock.patch.dict(run.env, SWITCHBOARD_DATABASE_URL=away):
        for line in ("doctor", "migrate", "tick", "endpoint list"):
            run.command(*line.split())


def over_mcp(run: Run, endpoint: Endpoint) -> None:
    """An agent, and somebody who tries."""
    session = RawSession(run.url, endpoint)
    run.keep("session of MCP", session.id)
    given = run.keep("signing secret given by an agent", "s3cr3t-" + secrets.token_hex(8))
    kinds: dict[str, dict[str, Any]] = {}
    for kind in (*SIGNED, "generic", "open"):
        more = {"signing_secret": given} if kind == "github" else {}
        kinds[kind] = session.call("create_webhook", source_type=kind, target_queue="inbox", **more)
        assert "error" not in kinds[kind], kinds[kind]
        run.keep(f"address {kind}", kinds[kind]["ingest_url"].rpartition("/")[2])
        if kinds[kind]["signing_secret"]:
            run.keep(f"secret {kind}", kinds[kind]["signing_secret"])
    private = run.payloads["a hook's address"] = "h00k" + secrets.token_hex(8)
    address = f"{run.hook.url}?token={private}"
    hook = session.call("create_notify_hook", url=address)
    run.keep("hook's secret", hook["signing_secret"])
    turned = session.call("rotate_notify_hook", hook_id=hook["hook_id"])
    run.keep("hook's secret", turned["signing_secret"])
    deliveries(run, kinds)
    for kind in ("github", "generic"):
        turned = session.call("rotate_webhook", webhook_id=kinds[kind]["webhook_id"])
        run.keep(f"rotated {kind}", turned["signing_secret"])
        if "ingest_url" in turned:
            run.keep(f"address {kind}", turned["ingest_url"].rpartition("/")[2])
    until(lambda: "outbound.failed" in run.log.read_text(), "a hook's call has failed")
    todo = session.call("claim_next")["todo"]
    session.call("complete", id=todo["id"], lease_token="wrong", result={})
    session.call("complete", id=todo["id"], lease_token=todo["lease_token"], result={"a": 1})
    wrong = run.keep("wrong credential", "sbk_" + secrets.token_urlsafe(32))
    session.post("{}", authorization=f"Bearer {wrong}")
    session.post("{", authorization=f"Bearer {endpoint.credential}")
    session.post(session.request("no/such", {"x": endpoint.credential}))
    for address in (
        f"?token={endpoint.credential}",
        f"?key={quote(endpoint.credential)}",
        f"/{endpoint.credential}",
    ):
        session.http.get(session.address + address)
        session.http.post(session.address + address, content=b"{}")
    run.db.rows("alter function switchboard.dispatch rename to dispatch_away")
    assert session.call("get_todo", id=todo["id"])["error"]["code"] == "internal"
    run.db.rows("alter function switchboard.dispatch_away rename to dispatch")
    session.http.close()


def deliveries(run: Run, kinds: dict[str, dict[str, Any]]) -> None:
    """Senders of each kind: genuine, forged, and with secrets where they should not be."""
    for kind, made in kinds.items():
        at, delivery = int(time.time()), secrets.token_hex(8)
        body = json.dumps({**document(kind, delivery, at), "note": MARK}).encode()
        token = made["ingest_url"].rpartition("/")[2]
        key = key_of(kind, made["signing_secret"] or token)
        headers = {"content-type": "application/json", **names(kind, delivery)}
        good = {**headers, **proof(kind, key, body, delivery, at)}
        extra = {"cookie": "c=" + run.keep("cookie of a sender", "c0okie" + secrets.token_hex(8))}
        extra["x-api-key"] = run.keep("key of a sender", "k3y" + secrets.token_hex(8))
        url = f"{run.url}/webhooks/w/{token}"
        password = run.keep("in a query", "pw" + secrets.token_hex(8))
        answer = httpx2.post(f"{url}?token={password}", content=body, headers={**good, **extra})
        assert answer.status_code in (200, 202), (kind, answer.text)
        httpx2.post(url, content=body + b" ", headers=good)
        httpx2.post(url, content=body, headers={**headers, "authorization": f"Bearer {password}"})
        httpx2.post(f"{url}/more", content=body, headers=good)
        httpx2.get(url)
        if kind == "github":
            httpx2.post(url, content=b"x" * 6_000_000, headers=good)


def over_rest(run: Run, token: str) -> None:
    """A script with a token."""
    with httpx2.Client(base_url=run.url, headers={"authorization": f"Bearer {token}"}) as http:
        made = http.post("/api/v1/tokens", json={"name": "another"}).json()
        run.keep("token", made["secret"])
        vended = http.post("/api/v1/endpoints", json={"slug": "beta", "queues": ["inbox"]}).json()
        run.keep("credential", vended["credential"])
        run.keep(
            "credential", http.post("/api/v1/endpoints/beta/rotate", json={}).json()["credential"]
        )
        given = run.keep("signing secret given over REST", "r3st-" + secrets.token_hex(8))
        body = {"endpoint": "beta", "source_type": "github", "target_queue": "inbox"}
        hook = http.post("/api/v1/webhooks", json={**body, "signing_secret": given}).json()
        run.keep("address", hook["ingest_url"].rpartition("/")[2])
        turned = http.post(f"/api/v1/webhooks/{hook['webhook']['id']}/rotate", json={})
        run.keep("signing secret", turned.json()["signing_secret"])
        http.post("/api/v1/webhooks", json={**body, "signing_secret": given * 100})
        http.post("/api/v1/webhooks", content=b'{"signing_secret": "' + given.encode())
        http.post("/api/v1/todos", json={"endpoint": "beta", "queue": "inbox", "title": MARK})
        http.get(f"/api/v1/todos?token={token}")
        http.get(f"/api/v1/{token}")
        wrong = run.keep("wrong token", "sbo_" + secrets.token_urlsafe(32))
        http.get("/api/v1/todos", headers={"authorization": f"Bearer {wrong}"})
        http.get(
            "/api/v1/todos",
            headers={"authorization": f"Basic {base64.b64encode(token.encode()).decode()}"},
        )
        run.db.rows("alter function switchboard.run_operation rename to run_away")
        assert http.get("/api/v1/todos").status_code == 500
        run.db.rows("alter function switchboard.run_away rename to run_operation")
    for bearer in (run.secrets["metrics token"], wrong):
        httpx2.get(f"{run.url}/metrics", headers={"authorization": f"Bearer {bearer}"})


def on_the_board(run: Run, token: str) -> None:
    """A human in a browser, by each way to sign in."""
    origin = {"origin": run.url}
    human = run.db.value("select id from switchboard.list_humans() where name = 'ada'")
    code = run.keep(
        "link", run.db.value("select code from switchboard.create_sign_in_link(%s)", human)
    )
    with httpx2.Client(base_url=run.url) as http:
        http.get(f"/sign-in/{code}")
        assert http.post(f"/sign-in/{code}", headers=origin).status_code == 303
        http.post(f"/sign-in/{code}", headers=origin)
        run.keep("cookie", http.cookies["switchboard"])
        csrf = run.keep(
            "form's token", re.findall(r'name="csrf" content="([^"]+)"', http.get("/").text)[0]
        )
        form = {"csrf": csrf, "grace_seconds": "0"}
        page = http.post("/endpoints/beta/rotate", data=form, headers=origin).text
        run.keep("credential", re.findall(r"sbk_[A-Za-z0-9_-]{43}", page)[0])
        http.post("/endpoints/beta/rotate", data={**form, "csrf": csrf[::-1]}, headers=origin)
        http.post(
            f"/endpoints/beta/rotate?csrf={csrf}",
            data=form,
            headers={"origin": "https://x.example"},
        )
        http.post("/sign-in", data={"token": token, "next": "/"}, headers=origin)
        run.keep("cookie", http.cookies["switchboard"])
        sought = run.payloads["a search"] = "s0ught" + secrets.token_hex(8)
        http.get(f"/?q={sought}")
        http.get(f"/?token={token}")
        http.get(f"/endpoints?token={token}&access_token={token}")
        http.post("/sign-out", data={"csrf": "x"}, headers=origin)
    with httpx2.Client(base_url=run.url) as http:
        wrong = run.keep("wrong cookie", "sbs_" + secrets.token_urlsafe(32))
        http.get("/", headers={"cookie": f"switchboard={wrong}"})
        http.get(f"/sign-in/{run.keep('wrong link', 'sbl_' + secrets.token_urlsafe(32))}")
    by_provider(run, human)


def by_provider(run: Run, human: Any) -> None:
    """The same by OpenID Connect, once well and once refused."""
    run.db.rows("select switchboard.add_human_identity(%s, %s, 'ada-1')", human, run.issuer.url)
    for changes in ({}, {"nonce": "x"}):
        with httpx2.Client(base_url=run.url) as http:
            address = http.get("/sign-in/oidc").headers["location"]
            query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
            run.keep("state", query["state"])
            run.keep("nonce", query["nonce"])
            back = {"code": run.issuer.approve(address, **changes), "state": query["state"]}
            http.get("/sign-in/oidc/callback", params=back)
            for seen in run.issuer.seen:
                run.keep("of the provider", seen)
            if "switchboard" in http.cookies:
                run.keep("cookie", http.cookies["switchboard"])


def failing(run: Run, endpoint: Endpoint) -> None:
    """The database goes away under the server, and comes back."""
    run.db.rows(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where application_name like 'switchboard%%' and pid <> pg_backend_pid()"
    )
    session = RawSession(run.url, endpoint, start=False)
    until(lambda: session.post(session.request("ping")).status_code < 500, "it is back")
    session.http.close()


def quiet_part(run: Run, endpoint: Endpoint) -> None:
    """The setting that is recommended, and a delivery of which nothing is to be seen."""
    run.set(log_parameter_max_length="0", log_parameter_max_length_on_error="0")
    failing(run, endpoint)
    session = RawSession(run.url, endpoint)
    session.call("create_todo", queue="inbox", title=run.keep("quiet", "what nobody is to read"))
    session.http.close()
