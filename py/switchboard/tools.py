"""A tool call: one database round trip, whatever the tool; one that waits asks again when woken.

No tool is named here. What the shell must add to a call is said by flags that come with
tools/list: ``secret`` (mint or take a signing secret and seal it), ``ingest_url`` (mint the token
of an address), ``outbound_url`` (the argument of this name is an address that will be called:
judge it first) and ``waits`` (an empty answer may wait for a better one). What of that is shown,
this once, the placeholders of the answer say.
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
from switchboard.outbound import Outbound, Refused
from switchboard.receivers import minted
from switchboard.waiting import wait_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from switchboard.secrets import Keyring
    from switchboard.waiting import Line, Waiting

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
        outbound: judges addresses that will be called.
        waiting: where calls wait.
    """

    def __init__(
        self,
        database: Database,
        keyring: Keyring,
        public_url: str,
        outbound: Outbound,
        waiting: Waiting,
    ) -> None:
        self._database = database
        self._keyring = keyring
        self._public_url = public_url
        self._outbound = outbound
        self._waiting = waiting

    async def call(
        self, line: Line, tool: str, arguments: Mapping[str, Any], request: str
    ) -> Outcome:
        """Call ``tool``; never raises. The call is logged, its arguments and its answer are not.

        Args:
            line: who calls, and what the call came in on.
            tool: the name of the tool, known or not.
            arguments: what the request gives, as Python reads it.
            request: the JSON text of the whole request; the database takes the arguments from it.
        """
        started = time.perf_counter()
        try:
            outcome = await self._call(line, tool, arguments, request)
        except Exception as error:
            known = error if isinstance(error, Problem) else self._database.errors.problem(error)
            problem = known or _fault(error)
            outcome = Outcome(json.dumps(problem.tool_error()), problem.code)
        logs.event(
            "mcp.call",
            endpoint=line.caller.slug,
            endpoint_id=line.caller.endpoint_id,
            tool=tool if outcome.code != "unknown_tool" else "-",
            outcome=outcome.code,
            ms=logs.milliseconds(started),
        )
        return outcome

    async def _call(
        self, line: Line, tool: str, arguments: Mapping[str, Any], request: str
    ) -> Outcome:
        made, wait = None, 0.0
        if flags := line.caller.shell.get(tool):
            if name := flags.get("outbound_url"):
                await self._vet(str(name), arguments.get(str(name)))
            if flags.get("secret"):
                rest = dict(arguments)
                made = minted(self._keyring, self._public_url, rest.pop("signing_secret", None))
                if len(rest) < len(arguments):  # what was taken out must not reach the database
                    request = json.dumps({"params": {"arguments": rest}})
            if flags.get("waits"):
                wait = wait_seconds(arguments)
        shell = json.dumps(made.shell()) if made else "{}"

        async def ask() -> str:
            answer: str = await self._database.value(
                CALL_TOOL, (*line.caller.key, tool, request, shell)
            )
            return answer

        text = await (self._waiting.call(line, arguments, wait, ask) if wait else ask())
        if text.startswith(_ERROR):
            answer = json.loads(text)
            if set(answer) == {"error"}:
                return Outcome(text, answer["error"]["code"])
        if made:
            text = json.dumps(made.fill(json.loads(text)), ensure_ascii=False)
        return Outcome(text)

    async def _vet(self, name: str, url: object) -> None:
        if not isinstance(url, str):
            return  # the database says what is wrong with it
        try:
            await self._outbound.vet(url)
        except Refused as error:
            reason = f"is not called from here: {error}"
            raise Problem(
                "invalid_argument", f"{name} {reason}", {"field": name, "reason": reason}
            ) from None


def _fault(error: Exception) -> Problem:
    problem = internal()
    logger.error("tool call failed, log id %s", problem.details["log_id"], exc_info=error)
    return problem
