"""What is somebody else's is to every caller what never was: each name, function and transport.

The lists come from the registers: tools() for MCP, api_operations() for REST, the board's pages and
forms, the catalog for logins that are bound. A new argument has to be sorted here into those that
name something and those that do not, so that none is left out by being forgotten. Same means: the
status, every header but the date, and every byte but the name that was sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from security_kit import (
    UNKNOWN,
    Bound,
    World,
    created,
    is_uuid,
    told,
    values_of,
    worker_functions,
    world,
)
from test_board import NOTE, Browser

from switchboard.board import PAGES
from switchboard.board_forms import FORMS

MALFORMED = (
    "not-an-id",
    "{" + UNKNOWN + "}",
    "' or 1=1 --",
    UNKNOWN[:-1] + "g",
    "A" * 90,
    "\u00fc" * 36,
)
NOWHERE = "no-such-queue"

# What an argument may name, by the names of somebody else that it is tried with.
IDS = ("todo", "claimed", "done", "dead", "quarantined", "event", "receiver", "hook", "endpoint")
PLACES = ("endpoint", "slug", "human", "receiver")
SCOPES = ("scope", "scope by id", "slug", "endpoint")
TOKENS = ("token", "token's name", "human", "endpoint")
QUEUES = ("queue",)
NAMING: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("id", "webhook_id", "hook_id", "webhook", "receiver"), IDS),
    **dict.fromkeys(("target_endpoint_id", "target", "endpoint", "slug"), PLACES),
    **dict.fromkeys(("queue", "queues", "target_queue"), QUEUES),
    "scope": SCOPES,
    "token": TOKENS,
    "q": ("other key", *IDS),
    "idempotency_key": ("key",),
    "p_actor_human_id": ("human",),
}
# What names nothing: texts, numbers, choices, and places in a list of one's own.
FREE = {
    "title", "payload", "kind", "source", "assignee", "max_attempts", "state", "limit", "force",
    "result", "lease_ttl_seconds", "lease_token", "wait_seconds", "include_payload", "offset",
    "include_result", "policy", "url", "signing_secret", "source_type", "cursor", "before", "after",
    "name", "expires_at", "expires_in_days", "days", "rows", "verbs", "webhook_source_types",
    "webhook_max", "grace_seconds", "quarantine",
}  # fmt: skip
# Who vends learns that a slug is taken, whoever has it: it is an address, unique for ever.
TELLS = {("vend_endpoint", "slug")}


@pytest.fixture(scope="module")
def here(cluster_url: str, template: str) -> Iterator[World]:
    with world(cluster_url, template) as made:
        yield made


def names(here: World, argument: str) -> list[str]:
    """What somebody else calls things that this argument might name."""
    return [here.them.names[kind] for kind in NAMING[argument]]


def nothings(argument: str) -> list[str]:
    """Names of nothing for the same argument, the first one well-formed."""
    if NAMING[argument] == QUEUES:
        return [NOWHERE]  # a name that no queue could have is refused for that, whoever asks
    if argument in ("q", "idempotency_key"):
        return [f"a key of nobody's, {argument}"]
    return [UNKNOWN, *MALFORMED]


def same(
    about: tuple[str, ...], ask: Callable[[str], Any], foreign: Iterable[str], absent: list[str]
) -> Any:
    """Ask with each name; whatever differs from a name of nothing is a failure."""
    wanted = ask(absent[0])
    for name in (*foreign, *absent[1:]):
        got = ask(name)
        assert got == wanted, f"{about}: {name!r} is told apart from a name of nothing"
    return wanted


def test_every_argument_is_sorted(here: World) -> None:
    tools = here.db.rows("select name, input from switchboard.tools()")
    operations = here.db.rows("select name, input from switchboard.api_operations()")
    known = {argument for row in (*tools, *operations) for argument in row["input"]}
    assert known <= {*NAMING, *FREE}, f"does it name anything? {known - {*NAMING, *FREE}}"
    assert not {*NAMING} & FREE


# ---- MCP


def own_arguments(here: World, tool: dict[str, Any]) -> dict[str, Any]:
    """What a call of one's own would say."""
    me = here.me
    values: dict[str, Any] = {
        "id": me.ids["todo"], "webhook_id": me.ids["receiver"], "hook_id": me.ids["hook"],
        "target_endpoint_id": me.endpoint.slug, "queue": "inbox", "lease_token": here.them.lease,
        "title": "t", "policy": {"max_in_flight": 3}, "source_type": "github",
        "target_queue": "inbox", "url": "https://127.0.0.1/",
    }  # fmt: skip
    return {name: values[name] for name in tool["required"]}


def test_an_agent_is_told_the_same_of_what_is_not_its_own(here: World) -> None:
    session = here.served.session(here.me.endpoint)
    before, tried = here.stored(here.them), set()
    for tool in here.db.rows("select name, input, required from switchboard.tools()"):
        for argument in [name for name in tool["input"] if name in NAMING]:

            def ask(name: str, tool: Any = tool, argument: str = argument) -> tuple[Any, ...]:
                listed = tool["input"][argument].get("type") == "array"
                own = own_arguments(here, tool)
                arguments = {**own, argument: [name] if listed else name}
                call = {"name": tool["name"], "arguments": arguments}
                answer = session.post(session.request("tools/call", call, request_id=7))
                assert not ("error" in answer.text and name in answer.text), "an id in an error"
                return created(told(answer, name))

            got = same((tool["name"], argument), ask, names(here, argument), nothings(argument))
            if argument in ("id", "webhook_id", "hook_id"):
                assert '"not_found"' in got[1].replace("\\", ""), got
            tried.add((tool["name"], argument))
    assert len(tried) > 25
    assert here.stored(here.them) == before


def test_a_tool_that_is_not_granted_is_as_unknown_as_none(here: World) -> None:
    """Also with names of somebody else's in it, and with those of nothing."""
    small = here.db.vend("small", human_id=here.me.human, verbs=["get_todo"])
    session = here.served.session(small)
    answers = set()
    for tool in [row["name"] for row in here.db.rows("select name from switchboard.tools()")]:
        if tool == "get_todo":
            continue
        for name in (here.them.ids["todo"], UNKNOWN):
            call = {"name": tool, "arguments": {"id": name}}
            answer = session.post(session.request("tools/call", call, request_id=7))
            answers.add(told(answer, tool))
    call = {"name": "no_such_tool", "arguments": {}}
    answers.add(told(session.post(session.request("tools/call", call, 7)), "no_such_tool"))
    assert len(answers) == 1
    assert "-32602" in answers.pop()[1]


# ---- REST


PATHS = {
    "todos": "todo", "webhooks": "receiver", "events": "event", "hooks": "hook",
}  # fmt: skip


def request_of(here: World, operation: dict[str, Any], argument: str, name: str) -> tuple[Any, ...]:
    """Method, address and body of a call of one's own, but for one name."""
    me = here.me
    kind = operation["path"].removeprefix("/api/v1/").split("/")[0]
    values: dict[str, Any] = {
        "id": me.ids.get(PATHS.get(kind, ""), ""), "scope": f"endpoint:{me.endpoint.slug}",
        "endpoint": me.endpoint.slug, "queue": "inbox", "target": me.endpoint.slug, "title": "t",
        "source_type": "github", "target_queue": "inbox", "url": "https://127.0.0.1/",
        "target_endpoint_id": me.endpoint.slug, "policy": {"max_in_flight": 3},
    }  # fmt: skip
    path, query = operation["path"], ""
    body: dict[str, Any] = {}
    for field, schema in operation["input"].items():
        value = name if field == argument else values.get(field)
        if schema["in"] == "path":
            path = path.replace("{" + field + "}", quote(str(value), safe=""))
        elif field == argument and schema["in"] == "query":
            query = f"?{field}={quote(str(value))}"
        elif schema["in"] == "whole body":
            body = values[field]
        elif field == argument or field in operation["required"]:
            body[field] = [value] if schema.get("type") == "array" else value
    sent = body if operation["method"] in ("POST", "PUT") else None
    return operation["method"], path + query, sent


def test_a_human_is_told_the_same_of_what_is_somebody_elses(here: World) -> None:
    http = Browser(here.served, here.me.token).http  # closed with the server
    http.cookies.clear()
    headers = {"authorization": f"Bearer {here.me.token}"}
    before, tried = here.stored(here.them), set()
    for operation in here.db.rows("select * from switchboard.api_operations()"):
        for argument in [name for name in operation["input"] if name in NAMING]:
            if (operation["name"], argument) in TELLS or argument == "queues":
                continue

            def ask(
                name: str, operation: Any = operation, argument: str = argument
            ) -> tuple[Any, ...]:
                method, path, body = request_of(here, operation, argument, name)
                answer = http.request(method, path, json=body, headers=headers)
                assert not ("error" in answer.text and name in answer.text), "an id in an error"
                return created(told(answer, name))

            about = (operation["name"], argument)
            got = same(about, ask, names(here, argument), nothings(argument))
            if argument in ("id", "scope", "endpoint", "token"):
                assert got[0] == 404, (about, got)
            tried.add(about)
    assert len(tried) > 50
    assert here.stored(here.them) == before
    http.close()


# ---- the board


def test_a_page_is_the_same_for_what_is_somebody_elses(here: World) -> None:
    browser = Browser(here.served, here.me.token)
    tried = 0
    for path, (page, arguments) in PAGES.items():
        for argument in [name for name in arguments if name in NAMING]:

            def ask(name: str, path: str = path, argument: str = argument) -> tuple[Any, ...]:
                own = {"id": here.me.ids["todo"], "slug": here.me.endpoint.slug, "queue": "inbox"}
                named = path.format(**{**own, argument: quote(name, safe="")})
                if "{" + argument + "}" not in path:
                    named += f"?{argument}={quote(name)}"
                return created(without_time(told(browser.get(named), name)))

            same((page, argument), ask, names(here, argument), nothings(argument))
            tried += 1
    assert tried >= 10
    browser.http.close()


def without_time(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """A page without what tells the time it was made."""
    text = re.sub(r' (data-now|data-end|value|datetime)="[^"]*"', "", answer[1])
    text = re.sub(r"\b\d+ (s|min|h|d)\b|\b\d\d:\d\d(:\d\d)?\b", "<ago>", text)
    return answer[0], text, *answer[2:]


def test_a_form_does_the_same_to_what_is_somebody_elses(here: World) -> None:
    browser = Browser(here.served, here.me.token)
    before = here.stored(here.them)
    fields = {"max_in_flight": "1", "queues": "inbox", "force": "1", "lease_ttl_seconds": "60"}
    for form in FORMS:
        for argument in re.findall(r"\{(\w+)\}", form.path):

            def ask(name: str, form: Any = form, argument: str = argument) -> tuple[Any, ...]:
                own = {"id": here.me.ids["todo"], "slug": here.me.endpoint.slug, "queue": "inbox"}
                path = form.path.format(**{**own, argument: quote(name, safe="")})
                answer = browser.send(path, **fields, confirm=name)
                if answer.status_code != 303:
                    return told(answer, name)
                notes = NOTE.findall(browser.see("/")[0])
                assert notes, path
                assert argument == "queue" or notes[0][0] == "refused", path
                return told(answer, name)[:2], str(notes).replace(name, "<said>")

            absent = [name for name in nothings(argument) if "\u00fc" not in name]
            same((form.path, argument), ask, names(here, argument), absent)
    assert here.stored(here.them) == before
    browser.http.close()


# ---- a login that is bound to an endpoint


@pytest.fixture
def bound(here: World) -> Iterator[Bound]:
    made = Bound(here)
    yield made
    made.close()


NOBODY = "nobody-desk"


NAMES = {
    "p_endpoint_id": "endpoint", "p_id": "id", "p_ids": "id", "p_webhook_id": "id",
    "p_hook_id": "id", "p_target_endpoint_id": "target", "p_queue": "queue", "p_queues": "queues",
    "p_idempotency_key": "q", "p_actor_human_id": "p_actor_human_id",
}  # fmt: skip


def test_a_bound_login_gets_and_reads_the_same_for_what_is_not_its_own(
    here: World, bound: Bound
) -> None:
    """By name and by the session's own statistics, which anybody may look at."""
    before, tried, told_apart = here.stored(here.them), set(), []
    for function in worker_functions(here):
        own = values_of(here, function["arguments"])
        for argument in [name for name in own if name in NAMES]:
            foreign, absent = names(here, NAMES[argument]), nothings(NAMES[argument])
            if argument == "p_actor_human_id":
                absent = [UNKNOWN]

            def ask(
                name: str, own: Any = own, argument: str = argument, function: Any = function
            ) -> tuple[Any, ...]:
                value = [name] if isinstance(own[argument], list) else name
                got, read = bound.ask(function["name"], {**own, argument: value})
                text = json.dumps(got, default=str).replace(json.dumps(name), '"<said>"')
                return created((0, text))[1], read

            wanted, _ = ask(absent[0])
            for name in (*foreign, *absent[1:]):
                assert ask(name)[0] == wanted, (function["name"], argument, name)
            # Who asks knows what form a name has: compare like with like.
            for name in {*foreign[:1], *foreign[-3:]}:
                like = absent[0] if is_uuid(name) else NOBODY
                costs = [ask(one)[1] for one in (like, name, like)]
                if costs[1] != costs[0] == costs[2]:
                    more = [pair for pair in zip(*costs[:2], strict=True) if pair[0] != pair[1]]
                    told_apart.append((function["name"], argument, name, more))
            tried.add((function["name"], argument))
    assert not told_apart, told_apart
    assert len(tried) > 50
    assert here.stored(here.them) == before
