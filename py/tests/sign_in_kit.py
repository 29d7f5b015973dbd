"""What tests of the sign-in share: browsers, and a served gateway with a human."""

from __future__ import annotations

from http.cookies import SimpleCookie
from typing import Any, cast

import httpx2
from conftest import Served, Sql

from switchboard.board_session import BoardSessions
from switchboard.secrets import digest

NEVER = {"failure_rate": 1e6, "failure_burst": 10**6}


class Browser:
    """A browser without scripts: cookies, the Origin of its page, no redirects followed."""

    def __init__(self, served: Served, origin: str | None = None) -> None:
        self.http = httpx2.Client(base_url=served.url, timeout=30, follow_redirects=False)
        self.origin = served.url if origin is None else origin

    def get(self, path: str, **headers: str) -> httpx2.Response:
        return self.http.get(path, headers=headers)

    def post(self, path: str, *, headers: Any = None, **fields: str) -> httpx2.Response:
        sent = {"origin": self.origin} if headers is None else headers
        return self.http.post(path, data=fields, headers=sent)

    @property
    def cookie(self) -> str:
        return self.http.cookies.get("switchboard") or ""


class Place:
    """A served gateway, its database, and browsers of it."""

    def __init__(self, served: Served, db: Sql) -> None:
        self.served, self.db = served, db
        self.url = served.url
        self.browsers: list[Browser] = []
        self.human = db.value("select id from switchboard.create_human('ada')")

    def browser(self, origin: str | None = None) -> Browser:
        self.browsers.append(Browser(self.served, origin))
        return self.browsers[-1]

    def token(self, name: str = "t") -> str:
        query = "select token from switchboard.create_operator_token(%s, %s)"
        return str(self.db.value(query, self.human, name))

    def code(self) -> str:
        return str(
            self.db.value("select code from switchboard.create_sign_in_link(%s)", self.human)
        )

    def whom(self, secret: str) -> str | None:
        """Whom a secret opens the board for, by the database."""
        found: str | None = self.db.value(
            "select switchboard.authenticate_operator(%s) ->> 'human'", digest(secret)
        )
        return found

    def signed_in(self) -> Browser:
        browser = self.browser()
        assert browser.post("/sign-in", token=self.token("own"), next="/").status_code == 303
        return browser

    def close(self) -> None:
        for browser in self.browsers:
            browser.http.close()

    def csrf(self, browser: Browser) -> str:
        return BoardSessions.csrf_of(cast(Any, None), browser.cookie)


def set_cookie(response: httpx2.Response, name: str = "switchboard") -> Any:
    """The cookie that an answer sets, with its attributes."""
    found = [SimpleCookie(header) for header in response.headers.get_list("set-cookie")]
    return next(one[name] for one in found if name in one)
