"""A word that outlives a redirect: what came of a form, shown once on the page that follows.

It travels in a cookie of its own, signed with the secret of the session, so that it is nobody
else's word, and needs no memory here: any process may serve the next page.
"""

from __future__ import annotations

import base64
import hmac
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

SECONDS = 60
MAX_CHARACTERS = 400
KINDS = ("done", "refused")


class Flash:
    """Puts, reads and takes away the word.

    Args:
        https: whether the public address is https.
    """

    def __init__(self, *, https: bool) -> None:
        self._https = https
        self._name = "__Host-switchboard-flash" if https else "switchboard-flash"

    def put(self, response: Response, secret: str, kind: str, text: str) -> None:
        """Let the next page say something.

        Args:
            response: the redirect.
            secret: of the session.
            kind: one of KINDS.
            text: what to say; what is beyond MAX_CHARACTERS is cut.
        """
        said = base64.urlsafe_b64encode(json.dumps([kind, text[:MAX_CHARACTERS]]).encode()).decode()
        self._set(response, f"{said}.{_sign(secret, said)}", SECONDS)

    def read(self, request: Request, secret: str) -> list[dict[str, str]]:
        """What is to be said; nothing when it was said elsewhere, or is somebody else's."""
        said, _, signature = request.cookies.get(self._name, "").partition(".")
        if not hmac.compare_digest(signature.encode(), _sign(secret, said).encode()):
            return []
        kind, text = json.loads(base64.urlsafe_b64decode(said))
        return [{"kind": kind, "text": text}]

    def forget(self, response: Response) -> None:
        """It was said."""
        self._set(response, "", 0)

    def _set(self, response: Response, value: str, seconds: int) -> None:
        response.set_cookie(
            self._name, value, seconds, httponly=True, samesite="lax", secure=self._https
        )


def _sign(secret: str, said: str) -> str:
    return hmac.new(secret.encode(), f"flash:{said}".encode(), "sha256").hexdigest()
