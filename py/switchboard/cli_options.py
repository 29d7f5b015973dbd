"""What several commands share: options, and reading arguments."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from switchboard.config import Settings
from switchboard.errors import Problem

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, for programs."
)

acting_option = click.option(
    "--human", "actor", help="In the name of this person, on their endpoints; yours, if left out."
)


class Endpoint(click.ParamType[str]):
    """A slug or id of an endpoint, completed from the database when it can be asked."""

    name = "endpoint"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The slugs that begin so; none when the database does not answer."""
        from switchboard.cli_database import operate  # it needs this module's neighbours

        with contextlib.suppress(Exception), operate(settings()) as (operator, _):
            rows = operator.rows("select slug, human, active from switchboard.list_endpoints()")
            return [
                CompletionItem(row["slug"], help=row["human"])
                for row in rows
                if row["active"] and row["slug"].startswith(incomplete)
            ]
        return []


ENDPOINT = Endpoint()


def settings() -> Settings:
    """The settings of this process."""
    return Settings.from_env()


def json_argument(text: str | None, name: str) -> Any:
    """Read a JSON argument: the text itself, ``@file``, or ``-`` for standard input.

    Raises:
        Problem: it is not JSON, or the file cannot be read.
    """
    if text is None:
        return None
    try:
        if text == "-":
            text = sys.stdin.read()
        elif text.startswith("@"):
            text = Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(
            "invalid_argument", f"{name} cannot be read: {error}", {"field": name}
        ) from None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        raise Problem(
            "invalid_argument",
            f"{name} is not JSON. A text goes in quotes of its own: '\"like this\"'.",
            {"field": name},
        ) from None
    return text


def time_argument(text: str | None, name: str) -> datetime | None:
    """Read a time in ISO 8601; UTC unless it says otherwise.

    Raises:
        Problem: it is not one.
    """
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Problem(
            "invalid_argument",
            f"{name} is not a time such as 2030-01-31T18:00:00Z.",
            {"field": name},
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
