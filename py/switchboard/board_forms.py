"""The board's forms: which operation each one is, and how its fields become arguments.

A form is an operation of the REST register, reached by an address that a browser can post to. What
an operation may be given, and by whom, is judged where every call is judged: in the database. So a
field that is no number goes there as the text it is, and comes back refused, by name.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs

from switchboard.errors import Problem
from switchboard.limits import discard, read_body

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.requests import Request

BODY_LIMIT = 65536
MAX_FIELDS = 200
INTEGER = re.compile(r"-?[0-9]{1,9}")
UNREADABLE = "the form could not be read: go back, load the page again and send it once more"

Fields = dict[str, list[str]]


async def take_form(request: Request, limit: int = BODY_LIMIT) -> Fields:
    """The fields of a request; the rest of a body that is too large is read and dropped.

    Args:
        request: a POST.
        limit: bytes.

    Raises:
        Problem: it is too large, is no form, or did not come in time.
        ClientGone: the client went away.
    """
    try:
        body = await read_body(request.receive, limit, request.headers.get("content-length"))
    except Problem:
        await discard(request.receive)
        raise
    return read_fields(body)


def read_fields(body: bytes) -> Fields:
    """The fields of a form.

    Args:
        body: ``application/x-www-form-urlencoded``.

    Raises:
        Problem: ``invalid_argument``: it is not that, or has too many fields.
    """
    try:
        return parse_qs(
            body.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=MAX_FIELDS,
        )
    except ValueError:
        raise Problem("invalid_argument", UNREADABLE, {"field": "body"}) from None


def text(values: Sequence[str]) -> str | None:
    """A text; left out when it is empty."""
    return json.dumps(values[-1]) if values[-1] else None


def number(values: Sequence[str]) -> str | None:
    """An integer; left out when it is empty."""
    given = values[-1].strip()
    return str(int(given)) if INTEGER.fullmatch(given) else text([given])


def flag(values: Sequence[str]) -> str | None:
    """True when it is there."""
    return "true" if values[-1] == "1" else None


def names(values: Sequence[str]) -> str | None:
    """Names that stand apart by blanks, commas or lines."""
    return json.dumps([name for name in re.split(r"[\s,]+", values[-1]) if name])


def choices(values: Sequence[str]) -> str | None:
    """The boxes that were ticked."""
    return json.dumps([value for value in values if value])


def document(values: Sequence[str]) -> str | None:
    """JSON as it was written, so that numbers stay exact; what is no JSON is a text."""
    given = values[-1].strip()
    if not given:
        return None
    try:
        json.loads(given, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return json.dumps(given.replace("\r\n", "\n"))
    return given


def _no_number(_: str) -> None:
    raise ValueError


class Form(NamedTuple):
    """What is behind an address that takes a form.

    Attributes:
        path: the address.
        operation: of the REST register.
        where: the operation's path arguments, made of those of the address.
        readers: the fields that are taken, each with how it is read.
        done: what is said afterwards.
        back: where the browser goes then; a field ``back`` may say otherwise.
        page: shown again, with what was filled in, when the operation refuses.
        reveals: heading of the page that shows, this once, the secrets of the answer.
        confirm: the argument of the address that must have been typed in full.
    """

    path: str
    operation: str
    where: Mapping[str, str]
    readers: Mapping[str, Callable[[Sequence[str]], str | None]]
    done: str
    back: str = "/"
    page: str | None = None
    reveals: str | None = None
    confirm: str | None = None

    def body(self, fields: Fields) -> str:
        """The operation's body, as JSON text."""
        if self.operation == "set_admission":
            return policy(fields)
        # What a browser does not send, a form without a ticked box for example, is empty.
        read = {name: reader(fields.get(name, [""])) for name, reader in self.readers.items()}
        parts = [
            f"{json.dumps(ARGUMENTS.get(name, name))}: {value}"
            for name, value in read.items()
            if value is not None
        ]
        return "{" + ", ".join(parts) + "}"


ARGUMENTS = {"verb": "verbs", "days": "expires_in_days"}


def policy(fields: Fields) -> str:
    """A budget: the window counts only with a number of claims, the weekday only for weeks."""
    given = {name: values[-1].strip() for name, values in fields.items()}
    limits = {
        name: number([given[name]])
        for name in ("max_in_flight", "max_claims_per_window")
        if given.get(name)
    }
    parts = [f"{json.dumps(name)}: {value}" for name, value in limits.items()]
    if "max_claims_per_window" in limits:
        weekly = given.get("period") == "week"
        wanted = ("period", "tz", "start", *(("weekday",) if weekly else ()))
        window = {name: given[name] for name in wanted if given.get(name)}
        parts.append(f'"window": {json.dumps(window)}')
    return "{" + ", ".join(parts) + "}"


LEASE = {"lease_ttl_seconds": number}
FORCE = {"force": flag}
RESULT = {"result": document}
GRANT = {"queues": names, "verb": choices, "webhook_max": number}
TODO = {"id": "{id}"}
ENDPOINT = {"endpoint": "{slug}"}
BUDGET = {"scope": "endpoint:{slug}", "queue": "{queue}"}


def _todo(verb: str, readers: Mapping[str, Any], done: str, operation: str = "") -> Form:
    path = f"/todos/{{id}}/{verb}"
    return Form(path, operation or verb, TODO, readers, done, back="/todos/{id}")


FORMS = (
    _todo("claim", LEASE, "It is yours until its lease ends."),
    _todo("extend", LEASE | FORCE, "The lease is extended."),
    _todo("complete", RESULT | FORCE, "It is done."),
    _todo("fail", RESULT | FORCE, "The attempt has failed."),
    _todo("release", FORCE, "It is given back."),
    _todo("retry", {}, "It waits again, with all its attempts."),
    _todo("release-quarantined", {}, "It is on its queue.", "release_quarantined"),
    _todo("discard-quarantined", {}, "It is discarded.", "discard_quarantined"),
    Form(
        "/endpoints",
        "vend_endpoint",
        {},
        {"slug": text, **GRANT, "days": number},
        "The endpoint is vended.",
        page="endpoints",
        reveals="The endpoint is vended",
    ),
    Form(
        "/endpoints/{slug}/grant",
        "set_grant",
        ENDPOINT,
        GRANT,
        "The grant is saved.",
        back="/endpoints/{slug}",
        page="endpoint",
    ),
    Form(
        "/endpoints/{slug}/rotate",
        "rotate_credential",
        ENDPOINT,
        {"grace_seconds": number},
        "The endpoint has a new credential.",
        back="/endpoints/{slug}",
        reveals="A new credential",
    ),
    Form(
        "/endpoints/{slug}/revoke",
        "revoke_endpoint",
        ENDPOINT,
        {},
        "The endpoint is revoked.",
        back="/endpoints/{slug}",
        confirm="slug",
    ),
    Form("/receivers/{id}/hold", "hold_webhook", TODO, {}, "It is held.", "/receivers"),
    Form("/receivers/{id}/unhold", "unhold_webhook", TODO, {}, "It goes on.", "/receivers"),
    Form(
        "/deliveries/{id}/replay",
        "replay_event",
        TODO,
        {"endpoint": text},
        "The delivery is replayed.",
        "/deliveries/{id}",
    ),
    Form(
        "/hooks/{id}/rotate",
        "rotate_hook",
        TODO,
        {},
        "The hook has a new secret.",
        "/hooks",
        reveals="A new signing secret",
    ),
    Form("/hooks/{id}/delete", "delete_hook", TODO, {}, "The hook is deleted.", "/hooks"),
    Form(
        "/budget/{slug}/{queue}",
        "set_admission",
        BUDGET,
        {},
        "The budget is saved.",
        "/budget/{slug}/{queue}",
        page="budget",
    ),
    Form(
        "/budget/{slug}/{queue}/clear",
        "clear_admission",
        BUDGET,
        {},
        "The budget is taken away.",
        "/budget/{slug}/{queue}",
    ),
)


def blank(page: str, shown: Mapping[str, Any]) -> dict[str, Any]:
    """What stands in the form of a page before anybody has typed; nothing on most pages.

    Args:
        page: which.
        shown: its document.
    """
    refusal: dict[str, Any] = {"error": None, "field": None}
    if page == "endpoints":
        verbs = [verb["name"] for verb in shown["verbs"] if verb["default"]]
        return {"slug": "", "queues": "", "verbs": verbs, "webhook_max": "1", "days": "", **refusal}
    if page == "endpoint":
        one = shown["endpoint"]
        queues = "\n".join(queue["queue"] for queue in one["queues"] if queue["granted"])
        return {
            "queues": queues,
            "verbs": one["verbs"],
            "webhook_max": str(one["webhook_max"]),
            **refusal,
        }
    if page == "budget":
        limits = shown["policy"] or {}
        return {
            **{name: str(limits.get(name, "")) for name in LIMITS},
            **WINDOW,
            **limits.get("window", {}),
            **refusal,
        }
    return {}


LIMITS = ("max_in_flight", "max_claims_per_window")
WINDOW = {"period": "day", "tz": "UTC", "start": "00:00", "weekday": "Mon"}


def filled(page: str, fields: Fields, shown: Mapping[str, Any], problem: Problem) -> dict[str, Any]:
    """The form of a page as it was sent, with why it was refused."""
    form = blank(page, shown)
    form |= {name: values[-1] for name, values in fields.items() if name in form}
    if "verbs" in form:
        form["verbs"] = fields.get("verb", [])
    return {**form, "error": problem.message, "field": problem.details.get("field")}
