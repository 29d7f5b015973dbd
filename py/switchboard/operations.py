"""What a human does: the operations of ``api_operations()``, for REST and for the board's forms.

No operation is named here. A call is one round trip, ``call_api()``, which authenticates, checks,
runs and answers. What the shell must add to one is said by flags in the register, as for the tools
of agents: ``secret`` (mint a signing secret, or take the one that the argument of this name gives,
and seal it), ``outbound_url`` (the argument of this name is an address that will be called: judge
it first) and ``public_url`` (the answer holds addresses of this server). For these, who calls is
asked first: nobody unknown has names resolved. What of it is shown, this once, the placeholders of
the answer say. The body goes to the database as it was written, so that numbers stay exact.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from switchboard.db import API_OPERATIONS, AUTHENTICATE_OPERATOR, CALL_API, Database
from switchboard.errors import Problem
from switchboard.outbound import Outbound, Refused
from switchboard.receivers import Minted, minted

if TYPE_CHECKING:
    from switchboard.secrets import Keyring

_ERROR = '{"error": '
_HERE = "$public_url/"


class Operation(NamedTuple):
    """A row of the register.

    Attributes:
        name: what the database calls it.
        method, path: where it is.
        description: for the OpenAPI document.
        arguments: JSON Schema properties, each with ``in``.
        required: those that must be given.
        answer: the shape of its answer.
        body_limit: bytes; 0: it takes no body.
        shell: flags for this module.
    """

    name: str
    method: str
    path: str
    description: str
    arguments: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...]
    answer: Mapping[str, Any]
    body_limit: int
    shell: Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """What came of a call.

    Attributes:
        human: who called; None: the digest opens nothing, or nobody could be asked (then there is
            a problem).
        text: the answer as JSON; empty when there is none.
        problem: why it was refused.
    """

    human: str | None
    text: str = ""
    problem: Problem | None = None

    @property
    def value(self) -> Any:
        """The answer, read; None when there is none."""
        return json.loads(self.text) if self.text else None


class Operations:
    """Calls operations for who a digest stands for.

    Args:
        database: where they are.
        keyring: seals signing secrets.
        public_url: what an address of ours begins with.
        outbound: judges addresses that will be called.
    """

    def __init__(
        self, database: Database, keyring: Keyring, public_url: str, outbound: Outbound
    ) -> None:
        self._database = database
        self._keyring = keyring
        self._public_url = public_url
        self._outbound = outbound
        self._known: dict[str, Operation] = {}

    async def register(self) -> Mapping[str, Operation]:
        """Every operation, by name; read once.

        Raises:
            psycopg.Error: the database could not be asked.
        """
        if not self._known:
            rows = await self._database.rows(API_OPERATIONS)
            self._known = {row[0]: Operation(*row) for row in rows}
        return self._known

    async def human(self, digest: bytes) -> str | None:
        """The name of whose token, or session, this is; None: it opens nothing.

        Raises:
            psycopg.Error: the database could not be asked.
        """
        name: str | None = await self._database.value(
            AUTHENTICATE_OPERATOR, (digest,), repeatable=True
        )
        return name

    async def call(
        self,
        name: str,
        digest: bytes,
        path: Mapping[str, Any],
        query: Mapping[str, str],
        body: str | None,
    ) -> Answer:
        """Call an operation.

        Args:
            name: of the operation, in the register.
            digest: SHA-256 of an operator token or of a session's secret.
            path: its arguments that are part of the address, as texts.
            query: those of the query, as texts.
            body: JSON text of an object; None: there is none.

        Raises:
            Exception: a fault of ours. What a caller did, or a database that cannot be asked, is
                a problem of the answer.
        """
        try:
            operation = (await self.register())[name]
            made = None
            if operation.shell:
                if (known := await self.human(digest)) is None:
                    return Answer(None)
                try:
                    body, made = await self._add(operation.shell, body)
                except Problem as problem:
                    return Answer(known, problem=problem)
            return await self._call(operation, digest, path, query, body, made)
        except (psycopg.Error, UnicodeEncodeError) as error:
            return await self._refused(digest, error)

    async def _call(
        self,
        operation: Operation,
        digest: bytes,
        path: Mapping[str, Any],
        query: Mapping[str, str],
        body: str | None,
        made: Minted | None,
    ) -> Answer:
        shell = json.dumps(made.shell() if made else {})
        parts = (json.dumps(path), json.dumps(query), body, shell)
        text, human = await self._database.row(
            CALL_API,
            (digest, operation.name, *parts, digest),
            repeatable=operation.method == "GET",
        )
        if human is None or text is None:  # it opens nothing, or does no more
            return Answer(None)
        if text.startswith(_ERROR):
            return Answer(human, problem=_problem(json.loads(text)))
        if made or operation.shell.get("public_url"):
            text = json.dumps(self._filled(json.loads(text), made), ensure_ascii=False)
        return Answer(human, text)

    async def _refused(self, digest: bytes, error: Exception) -> Answer:
        """What is wrong with a call is nobody's business but a caller's that is known."""
        problem = self._database.errors.problem(error)
        if problem is None:
            raise error
        if self._database.errors.status(problem.code) >= 500:
            return Answer(None, problem=problem)
        try:
            human = await self.human(digest)
        except psycopg.Error as unreachable:
            problem = self._database.errors.problem(unreachable)
            if problem is None:
                raise
            return Answer(None, problem=problem)
        return Answer(human, problem=problem if human else None)

    async def _add(
        self, flags: Mapping[str, Any], body: str | None
    ) -> tuple[str | None, Minted | None]:
        """The body without the secret that it gives, and what is minted for it."""
        fields = json.loads(body, parse_int=_number) if body else {}
        if name := flags.get("outbound_url"):
            await self._vet(name, fields.get(name))
        secret = flags.get("secret")
        if not secret:
            return body, None
        given = fields.pop(secret, None) if isinstance(secret, str) else None
        made = minted(self._keyring, self._public_url, given)
        # What was taken out must not reach the database.
        return (json.dumps(fields) if given is not None else body), made

    async def _vet(self, name: str, url: object) -> None:
        if not isinstance(url, str):
            return  # the database says what is wrong with it
        try:
            await self._outbound.vet(url)
        except Refused as error:
            reason = f"is not called from here: {error}"
            details = {"field": name, "reason": reason}
            raise Problem("invalid_argument", f"{name} {reason}", details) from None

    def _filled(self, answer: Mapping[str, Any], made: Minted | None) -> Mapping[str, Any]:
        """The answer with its placeholders filled; only members of the answer itself hold them."""
        if made:
            answer = made.fill(answer)
        return {
            key: self._public_url + value[len(_HERE) - 1 :]
            if isinstance(value, str) and value.startswith(_HERE)
            else value
            for key, value in answer.items()
        }


def _number(text: str) -> float:
    return int(text) if len(text) < 20 else float(text)  # int() refuses more than 4,300 digits


def _problem(answer: Mapping[str, Any]) -> Problem:
    error = answer["error"]
    details = {key: value for key, value in error.items() if key not in ("code", "message")}
    return Problem(error["code"], error["message"], details, retry_after=answer.get("retry_after"))
