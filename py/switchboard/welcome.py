"""What `switchboard up` shows: everything a newcomer needs to type or paste next."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from switchboard.cli_endpoint import config_lines, mcp_config
from switchboard.first import HUMAN, QUEUE, First

SAMPLE = {
    "action": "opened",
    "issue": {"number": 1, "title": "The build is red", "html_url": "https://example.org/issues/1"},
    "repository": {"full_name": "example/project"},
}


def webhook_line(public_url: str, first: First) -> str:
    """A shell command that sends a GitHub delivery with the right signature; needs curl only."""
    body = json.dumps(SAMPLE, separators=(",", ":"))
    secret = shlex.quote(first.signing_secret)
    if shutil.which("openssl"):
        sign = f"openssl dgst -sha256 -hmac {secret} -r | cut -d' ' -f1"
    else:
        code = (
            "import hmac,sys;"
            "print(hmac.new(sys.argv[1].encode(),sys.stdin.buffer.read(),'sha256').hexdigest())"
        )
        sign = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)} {secret}"
    return (
        f'BODY={shlex.quote(body)}; curl -sS {public_url}{first.ingest_path} -d "$BODY"'
        " -H 'Content-Type: application/json' -H 'X-GitHub-Event: issues'"
        ' -H "X-GitHub-Delivery: hello-$(date +%s)"'
        f' -H "X-Hub-Signature-256: sha256=$(printf %s "$BODY" | {sign})"'
    )


def command() -> str:
    """How to call this program again from the shell that started it."""
    program = Path(sys.executable).parent / "switchboard"
    if shutil.which("switchboard") == str(program):
        return "switchboard"
    relative = os.path.relpath(program)
    return shlex.quote(str(program) if relative.startswith("..") else relative)


def facts(
    public_url: str, first: First | None, psql: str | None, link: str | None = None
) -> dict[str, Any]:
    """The same for programs; ``link`` signs in to the board, once."""
    found: dict[str, Any] = {"url": public_url, "psql": psql, "sign_in_url": link}
    if first is not None:
        found |= {
            "mcp": mcp_config(public_url, first.slug, first.credential),
            "slug": first.slug,
            "credential": first.credential,
            "credential_valid": first.valid,
            "ingest_url": public_url + first.ingest_path,
            "signing_secret": first.signing_secret,
            "webhook_command": webhook_line(public_url, first),
        }
    return found


def lines(
    public_url: str,
    first: First | None,
    psql: str | None,
    program: str | None = None,
    link: str | None = None,
) -> list[str]:
    """The same for a person; ``program`` is what they type for this program."""
    program = program or command()
    text = ["", f"Switchboard serves {public_url}. Stop it with ctrl-C; its data stays.", ""]
    if first is None:
        text += [
            "The endpoint agent was vended elsewhere; its credential was shown there. A new one:",
            f"  {program} endpoint rotate agent",
            "",
        ]
    elif not first.valid:
        text += [
            f"The credential of endpoint {first.slug} was changed or revoked since. For another:",
            f"  {program} endpoint rotate {first.slug}",
            "",
        ]
    if first is not None and first.valid:
        text += [
            "1. For an agent: paste this into its MCP configuration",
            "",
            *config_lines(public_url, first.slug, first.credential),
            "",
        ]
    if first is not None:
        text += [
            "2. Send a signed GitHub webhook: it becomes a todo",
            "",
            f"  {webhook_line(public_url, first)}",
            "",
        ]
    if link is not None:
        text += [
            "3. See it on the board: this link signs you in, once, within an hour",
            "",
            f"  {link}",
            "",
            f"   {program} human login {HUMAN} prints another.",
            "",
        ]
    else:
        text += [
            "3. See it on the board: this prints a link that signs in, once",
            "",
            f"  {program} human login NAME",
            "",
        ]
    text += [
        "4. Look at it, or push a todo by hand (in another terminal)",
        "",
        f"  {program} todo list",
        f"  {program} todo push agent 'Say hello' -q {QUEUE}",
        "",
        "   Then tell the agent: Drain your switchboard queue.",
        "",
    ]
    if psql is not None:
        text += ["5. The same in SQL, as a DBA", "", f"  {psql}", ""]
    return text
