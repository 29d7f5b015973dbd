"""A tool call: one database round trip, whatever the tool.

No tool is named here. What the shell must add to a call is said by flags that come with
tools/list: ``secret`` (mint or take a signing secret and seal it) and ``ingest_url`` (mint the
token of an address). What of that is shown, this once, the placeholders of the answer say.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from switchboard import logs
from switchboard.db import CALL_TOOL, Database
from switchboard.errors import Problem, internal
from switchboard.receivers import minted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from switchboard.auth import Caller
    from switchboard.secrets import Keyring

logger = logging.getLogger(__name__)

_ERROR = '{"error": '


@dataclass(frozen=True)
class Outcome:
    """What a tool answered.

    Attributes:
        text: the structured content as JSON, as the database rendered it.
        code: ``ok``, or the code of the error.
    """

    text: str
    code: str = "ok"

    @property
    def message(self) -> str:
        """The message of the error."""
        message: str = json.loads(self.text)["error"]["message"]
        return message


class Toolbox:
    """Calls tools in the name of a caller.

    Args:
        database: where the tools are.
        keyring: seals signing secrets.
        public_url: what an address of ours begins with.
    """

    def __init__(self, database: Database, keyring: Keyring, public_url: str) -> None:
        self._database = database
        self._keyring = keyring
        self._public_url = public_url

    async def call(
        self, caller: Caller, tool: str, arguments: Mapping[str, Any], request: str
    ) -> Outcome:
        """Call ``tool``; never raises. The call is logged, its arguments and its answer are not.

        Args:
            caller: who calls.
            tool: the name of the tool, known or not.
            arguments: what the request gives, as Python reads it.
            request: the JSON text of the whole request; the database takes the arguments from it.
        """
        started = time.perf_counter()
        try:
            outcome = await self._call(caller, tool, arguments, request)
        except Exception as error:
            known = error if isinstance(error, Problem) else self._database.errors.problem(error)
            problem = known or _fault(error)
            outcome = Outcome(json.dumps(problem.tool_error()), problem.code)
        logs.event(
            "mcp.call",
            endpoint=caller.slug,
            endpoint_id=caller.endpoint_id,
            tool=tool if outcome.code != "unknown_tool" else "-",
            outcome=outcome.code,
            ms=logs.milliseconds(started),
        )
        return outcome

    async def _call(
        self, caller: Caller, tool: str, arguments: Mapping[str, Any], request: str
    ) -> Outcome:
        made = None
        if flags := caller.shell.get(tool):
            rest = dict(arguments)
            given = rest.pop("signing_secret", None) if flags.get("secret") else None
            made = minted(self._keyring, self._public_url, given)
            if len(rest) < len(arguments):  # what was taken out must not reach the database
                request = json.dumps({"params": {"arguments": rest}})
        text: str = await self._database.value(
            CALL_TOOL, (*caller.key, tool, request, json.dumps(made.shell()) if made else "{}")
        )
        if text.startswith(_ERROR):
            answer = json.loads(text)
            if set(answer) == {"error"}:
                return Outcome(text, answer["error"]["code"])
        if made:
            text = json.dumps(made.fill(json.loads(text)), ensure_ascii=False)
        return Outcome(text)


def _fault(error: Exception) -> Problem:
    problem = internal()
    logger.error("tool call failed, log id %s", problem.details["log_id"], exc_info=error)
    return problem
