"""The board's pages as HTML: templates in, answers and live regions out.

Autoescape is on and an unknown name is an error, so that a page never shows half of what it was
given. A page and the fragments of its stream come from the same template: a region stands between
two comments, and rendered ``live`` it holds no relative times, so that its text changes only when
its data does.
"""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Scope

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# Under no-referrer a browser sends forms with the Origin null; under this one, nothing to others.
REFERRER = "same-origin"
KEPT = "public, max-age=31536000, immutable"
REGION = re.compile(
    r"<!--live:(?P<name>[a-z0-9-]+)-->(?P<html>.*?)<!--/live:(?P=name)-->", re.DOTALL
)
ALONE = {"csrf": "", "live": False, "events": None, "flash": []}


class Render:
    """Makes pages of the templates that travel in the package.

    Args:
        form_targets: further sources for ``form-action``, the address of an issuer for example:
            browsers follow redirects of a form only to what the policy names.
    """

    def __init__(self, form_targets: tuple[str, ...] = ()) -> None:
        self._environment = Environment(
            loader=PackageLoader("switchboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._policy = POLICY.replace(
            "form-action 'self'", " ".join(["form-action 'self'", *form_targets])
        )
        self._static = f"?v={_version()}"

    def page(
        self,
        name: str,
        context: Mapping[str, Any],
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """A whole page.

        Args:
            name: the template, without its ending.
            context: what it shows; csrf, live, events and flash have defaults.
            status: of HTTP.
            headers: further ones.
        """
        given = {
            "Content-Security-Policy": self._policy,
            "Referrer-Policy": REFERRER,
            **(headers or {}),
        }
        return Response(self._text(name, context), status, given, media_type="text/html")

    def regions(self, name: str, context: Mapping[str, Any]) -> dict[str, str]:
        """The live regions of a page by name, without relative times and without a CSRF token."""
        text = self._text(name, {**context, "live": True, "csrf": ""})
        return {found["name"]: found["html"] for found in REGION.finditer(text)}

    def _text(self, name: str, context: Mapping[str, Any]) -> str:
        template = self._environment.get_template(f"{name}.html")
        return template.render({**ALONE, "page": name, "static": self._static, **context})


class Static(StaticFiles):
    """The assets; what is asked for by its version never changes."""

    def __init__(self) -> None:
        self._version = f"v={_version()}".encode()
        super().__init__(packages=[("switchboard", "static")])

    async def get_response(self, path: str, scope: Scope) -> Response:
        """One file."""
        response = await super().get_response(path, scope)
        versioned = scope["query_string"] == self._version
        response.headers["Cache-Control"] = KEPT if versioned else "no-cache"
        return response


def _version() -> str:
    """A short text that changes with any of the assets."""
    files = sorted(resources.files("switchboard").joinpath("static").iterdir(), key=str)
    parts = (file.read_bytes() for file in files if file.is_file())
    return hashlib.sha256(b"".join(parts)).hexdigest()[:12]
