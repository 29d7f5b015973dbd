"""The JSON-RPC messages that the gate reads and writes itself.

Only what is well formed is recognised; everything else is left to the MCP SDK, which answers it as
the protocol wants.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import mcp_types as types
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.responses import Response

from switchboard.guard import json_response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.datastructures import Headers

    from switchboard.tools import Outcome

SESSION_HEADER = "mcp-session-id"


def parse(body: bytes) -> tuple[str, Any]:
    """The text of the body, and the message; None when it is not JSON (the SDK then says so).

    The numbers in the message are Python's, the nearest it has; the text has them as they were
    written.
    """
    text = ""
    try:
        text = body.decode("utf-8-sig")
        try:
            return text, json.loads(text)
        except ValueError:  # so many digits that Python refuses to read them?
            return text, json.loads(text, parse_int=_integer)
    except (ValueError, RecursionError):
        return text, None


def _integer(digits: str) -> float:
    return int(digits) if len(digits) < 4000 else float(digits)


def accepts_json(headers: Headers) -> bool:
    """Whether the client takes a plain JSON answer."""
    accept = headers.get("accept", "")
    return "application/json" in accept or "*/*" in accept


def tool_call(message: Any) -> tuple[str, Mapping[str, Any]] | None:
    """Name and arguments of a well-formed tools/call request; None for anything else."""
    if not isinstance(message, dict) or message.get("method") != "tools/call":
        return None
    params = message.get("params")
    if message.get("jsonrpc") != "2.0" or not isinstance(params, dict):
        return None
    name, arguments = params.get("name"), params.get("arguments", {})
    if not isinstance(name, str) or not isinstance(arguments, dict) or "task" in params:
        return None
    return (name, arguments) if type(message.get("id")) in (str, int) else None


def answer(message: Mapping[str, Any], outcome: Outcome, session_id: str) -> Response:
    """The JSON-RPC answer to a tool call; the structured content is passed on as it came."""
    head = f'{{"jsonrpc":"2.0","id":{json.dumps(message["id"])},'
    if outcome.code == "unknown_tool":
        error = {"code": types.INVALID_PARAMS, "message": outcome.message}
        text = f'{head}"error":{json.dumps(error)}}}'
    else:
        quoted = json.dumps(outcome.text, ensure_ascii=False)
        failed = "false" if outcome.code == "ok" else "true"
        text = (
            f'{head}"result":{{"content":[{{"type":"text","text":{quoted}}}],'
            f'"structuredContent":{outcome.text},"isError":{failed}}}}}'
        )
    return Response(text, headers={SESSION_HEADER: session_id}, media_type="application/json")


def cancelled(message: Any) -> str | int | None:
    """The id of the request that this notification gives up; None for anything else."""
    if not isinstance(message, dict) or message.get("method") != "notifications/cancelled":
        return None
    params = message.get("params")
    request_id = params.get("requestId") if isinstance(params, dict) else None
    return request_id if type(request_id) in (str, int) else None


def event(method: str, params: Mapping[str, Any]) -> bytes:
    """A notification as an event of a stream."""
    text = json.dumps(
        {"jsonrpc": "2.0", "method": method, "params": params},
        ensure_ascii=False,
        separators=(",", ":"),
    )
    return f"event: message\r\ndata: {text}\r\n\r\n".encode()


def refuse_version(headers: Headers, message: Any) -> Response:
    """The refusal that makes a client fall back to a version with sessions."""
    version = headers.get("mcp-protocol-version")
    supported = list(HANDSHAKE_PROTOCOL_VERSIONS)
    error = {
        "code": types.UNSUPPORTED_PROTOCOL_VERSION,
        "message": "Unsupported protocol version",
        "data": {"supported": supported, "requested": version},
    }
    request_id = message.get("id") if isinstance(message, dict) else None
    return json_response({"jsonrpc": "2.0", "id": request_id, "error": error}, 400)
