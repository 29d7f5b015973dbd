"""Outbound calls: what is refused, where the connection goes, what of the answer counts.

Faults 38 and 39. Names are resolved by the tests; receivers are real, on loopback.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import json
import logging
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

import httpcore2
import pytest
import standardwebhooks
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from switchboard import outbound
from switchboard.config import Settings
from switchboard.outbound import Outbound, Refused
from switchboard.signing import sign

pytestmark = pytest.mark.anyio

PUBLIC = "93.184.216.34"
LOOPBACK = ("127.0.0.0/8", "::1/128")
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # one without authorities is made faster
SHORT = 0.3  # seconds; what has to time out does so after this
SOON = 2.0  # and is over after this, on a busy machine


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound, "DEADLINE", SHORT)


class Names:
    """A resolver: answers from a table, in turn where it says so, and numbers as the system."""

    def __init__(self, **names: list[str] | list[list[str]]) -> None:
        self.names = {name.replace("_", "."): answers for name, answers in names.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        answers = self.names.get(host)
        if answers is None:
            found = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )
            return [str(entry[4][0]) for entry in found]
        if answers and isinstance(answers[0], list):
            return answers.pop(0) if len(answers) > 1 else answers[0]
        return answers


@contextlib.asynccontextmanager
async def calling(
    resolver: outbound.Resolver | None = None,
    tls: ssl.SSLContext | None = NO_TLS,
    **options: object,
) -> AsyncIterator[Outbound]:
    out = Outbound(Settings(**options), resolver, tls)
    try:
        yield out
    finally:
        await out.aclose()


@dataclass
class Call:
    """A request as a receiver got it."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int


Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Receiver:
    """A server that answers each request in one way, raw."""

    answer: bytes | Answer
    port: int = 0
    connections: int = 0
    open: int = 0
    calls: list[Call] = field(default_factory=list)
    sni: list[str | None] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        number = self.connections
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                pairs = (line.split(": ", 1) for line in head[1:] if line)
                headers = {name.lower(): value for name, value in pairs}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.calls.append(Call(head[0], headers, body, number))
                if isinstance(self.answer, bytes):
                    writer.write(self.answer)
                    await writer.drain()
                else:
                    await self.answer(writer)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        except RuntimeError:  # uvloop, when the connection is gone
            pass
        finally:
            self.open -= 1
            writer.close()


@contextlib.asynccontextmanager
async def receiving(
    answer: bytes | Answer,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Receiver]:
    receiver = Receiver(answer)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        tasks.add(task)
        with contextlib.suppress(asyncio.CancelledError):
            await receiver.serve(reader, writer)

    if tls:
        tls.sni_callback = lambda _socket, name, _context: receiver.sni.append(name)
    server = await asyncio.start_server(serve, host, port, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)
        await server.wait_closed()


def reply(status: str = "200 OK", *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def until(true: Callable[[], bool], what: str) -> None:
    for _ in range(2000):
        if true():
            return
        await asyncio.sleep(0.005)
    raise AssertionError(what)


async def post_to(
    receiver: Receiver, resolver: outbound.Resolver | None = None, host: str = "127.0.0.1"
) -> str:
    """Call a receiver on loopback over http, where that is allowed."""
    options = {"outbound_http": True, "outbound_private": LOOPBACK}
    async with calling(resolver, outbound_ports=(receiver.port,), **options) as out:
        return await out.post(f"http://{host}:{receiver.port}/hook?a=1", {}, b"{}")


# Fault 38: what is called


FORMS = [
    # Loopback in other words, as getaddrinfo takes them.
    "https://localhost/",
    "https://LOCALHOST/",
    "https://127.0.0.1/",
    "https://127.8.8.8/",
    "https://0x7f000001/",
    "https://0x7F.0.0.1/",
    "https://2130706433/",
    "https://017700000001/",
    "https://0177.0.0.1/",
    "https://127.0.0.01/",
    "https://127.1/",
    "https://127.0.1/",
    "https://0/",
    "https://0.0.0.0/",
    "https://[::1]/",
    "https://[0:0:0:0:0:0:0:1]/",
    "https://[::]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::FFFF:7F00:1]/",
    "https://[::127.0.0.1]/",
    "https://[64:ff9b::127.0.0.1]/",
    "https://[64:ff9b::a9fe:a9fe]/",
    "https://[64:ff9b:1::127.0.0.1]/",
    "https://[2002:7f00:1::]/",
    "https://[2001:0:7f00:1::1]/",
    # What else is not public.
    "https://169.254.169.254/latest/meta-data/",
    "https://[fd00:ec2::254]/",
    "https://10.1.2.3/",
    "https://192.168.1.1/",
    "https://100.100.100.200/",
    "https://[fe80::1]/",
    "https://[fec0::1]/",
    "https://224.0.0.1/",
    "https://[ff02::1]/",
    "https://255.255.255.255/",
    # Forms that parsers read in different ways.
    "https://[fe80::1%25eth0]/",
    "https://[fe80::1%eth0]/",
    "https://[::1%25lo]/",
    "https://127.0.0.1./",
    "https://localhost./",
    "https://hooks.example./",
    "https://hooks..example/",
    "https://.hooks.example/",
    "https://hooks.example.1/",
    "https://hooks.example.0x1/",
    "https://1.2.3.4.5/",
    "https://%31%32%37.0.0.1/",
    "https://hooks%2eexample/",
    "https://hooks.example%00.evil.example/",
    "https://\uff11\uff12\uff17.\uff10.\uff10.\uff11/",
    "https://127。0。0。1/",
    "https://ⓛocalhost/",
    "https://bücher.example/",
    "https://hooks.example\\@127.0.0.1/",
    "https://127.0.0.1\\@hooks.example/",
    "https:\\\\hooks.example/",
    "https://hooks.example\t/",
    "https://hooks.ex\nample/",
    "https://hooks.example/\r\nx-evil: 1",
    "https://hooks.example/ HTTP/1.1",
    " https://hooks.example/",
    "https://hooks.example/\x00",
    "https://hooks.example/\x7f",
    "https://hooks.example/ü",
    # User, password, fragment, port, scheme, host.
    "https://user@hooks.example/",
    "https://user:password@hooks.example/",
    "https://@hooks.example/",
    "https://hooks.example@127.0.0.1/",
    "https://hooks.example:443@127.0.0.1/",
    "https://hooks.example/#fragment",
    "https://hooks.example#@127.0.0.1/",
    "https://hooks.example/?a#",
    "https://hooks.example:80/",
    "https://hooks.example:22/",
    "https://hooks.example:0/",
    "https://hooks.example:65979/",
    "https://hooks.example:-443/",
    "https://hooks.example:+443/",
    "https://hooks.example:443:443/",
    "https://hooks.example:/",
    "https://hooks.example:٤٤٣/",
    "http://hooks.example/",
    "http://hooks.example:443/",
    "ftp://hooks.example/",
    "file:///etc/passwd",
    "gopher://hooks.example/",
    "//hooks.example/",
    "https:hooks.example/",
    "https:/hooks.example/",
    "https:///hooks.example/",
    "https://",
    "https://?hooks.example",
    "hooks.example",
    "",
    "https://-hooks.example/",
    "https://hooks-.example/",
    "https://" + "a" * 64 + ".example/",
    "https://" + "a." * 126 + "example/",
    "https://hooks.example/" + "a" * 2048,
    "https://[::1/",
    "https://::1/",
    "https://[]/",
    "https://[127.0.0.1]/",
    "https://[v1.a]/",
    "https://[::1]hooks.example/",
    "https://hooks.example[::1]/",
    "https://[1:2:3:4:5:6:7:8:9]/",
    "https://hooks.example;127.0.0.1/",
    "https://hooks.example|127.0.0.1/",
    "https://hooks,example/",
]


@pytest.mark.parametrize("url", FORMS)
async def test_every_form_of_what_is_not_to_be_called_is_refused(url: str) -> None:
    async def resolver(host: str, port: int) -> list[str]:
        """What is a number to the system is one, any other name is public."""
        if "localhost" in host:
            return ["127.0.0.1"]
        with contextlib.suppress(OSError, UnicodeError):
            return await Names()(host, port)
        return [PUBLIC]

    async with calling(resolver) as out:
        with pytest.raises(Refused) as refused:
            await out.vet(url)
        assert str(refused.value).endswith(".")
        assert await out.post(url, {}, b"") == "refused"


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example",
        "https://hooks.example/",
        "HTTPS://Hooks.Example/",
        "https://hooks.example:443/a/b?c=d&e=%20%0d%0a",
        "https://hooks.example:8443?c=d/@e",
        "https://hooks.example/@user:pass",
        "https://xn--bcher-kva.example/",
        "https://my_hooks.example/",
        "https://1.hooks.example/",
        "https://" + "a" * 63 + ".example/",
        f"https://{PUBLIC}/",
        "https://[2606:4700:4700::1111]:8443/",
    ],
)
async def test_what_is_public_may_be_called(url: str) -> None:
    class Public(Names):
        async def __call__(self, host: str, port: int) -> list[str]:
            return [PUBLIC] if "example" in host else await super().__call__(host, port)

    async with calling(Public()) as out:
        await out.vet(url)


DENIED = [
    *("0.0.0.0", "0.255.255.255", "10.0.0.0", "10.255.255.255", "100.64.0.0", "100.127.255.255"),
    *("127.0.0.1", "127.255.255.255", "168.63.129.16", "169.254.0.0", "169.254.169.254"),
    *("172.16.0.0", "172.31.255.255", "192.0.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1"),
    *("192.168.0.0", "192.168.255.255", "198.18.0.0", "198.19.255.255", "198.51.100.1"),
    *("203.0.113.1", "224.0.0.0", "239.255.255.255", "240.0.0.0", "255.255.255.255"),
    *("::", "::1", "::7f00:1", "::127.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:10.0.0.1"),
    *("::ffff:169.254.169.254", "::ffff:100.64.0.1", "::ffff:0:127.0.0.1", "64:ff9b::10.0.0.1"),
    *("64:ff9b::127.0.0.1", "64:ff9b::100.64.0.1", "64:ff9b::224.0.0.1", "64:ff9b:1::1"),
    *("64:ff9b:1:7f00:0:100::", "64:ff9b:1:ffff:ffff:ffff:ffff:ffff", "100::1", "2001::1"),
    *("2001:0:4136:e378:8000:63bf:80ff:fffe", "2001:2::1", "2001:10::1", "2001:20::1"),
    *("2001:db8::1", "2002::", "2002:7f00:1::1", "2002:a00:1::", "2002:c0a8:101::1", "3fff::1"),
    *("4000::", "5f00::1", "8000::", "fc00::", "fd00:ec2::254", "fdff::1", "fe80::1", "febf::1"),
    *("fec0::1", "feff::1", "ff00::", "ff02::1", "ff0e::1", "ffff::"),
    *("fe80::1%eth0", "2606:4700::1%1", "127.1", "0177.0.0.1", "2130706433", "", "localhost"),
]
ALLOWED = [
    *("1.1.1.1", "8.8.8.8", PUBLIC, "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0"),
    *("126.255.255.255", "128.0.0.0", "169.253.255.255", "169.255.0.0", "172.15.255.255"),
    *("172.32.0.0", "192.0.1.0", "192.167.255.255", "192.169.0.0", "198.17.255.255"),
    *("198.20.0.0", "223.255.255.255", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2001:200::1"),
    *("2001:db7:ffff::", "2001:db9::", "2003::", "2606:4700:4700::1111", "2a00:1450:4001::1"),
]


@pytest.mark.parametrize("address", DENIED)
async def test_a_name_at_an_address_that_is_not_public_is_refused(address: str) -> None:
    names = Names(hooks_example=[address])
    async with calling(names) as out:
        with pytest.raises(Refused):
            await out.vet("https://hooks.example/")
        assert await out.post("https://hooks.example/", {}, b"") == "refused"
    assert len(names.asked) == 2, "a second look before the call"


@pytest.mark.parametrize("address", ALLOWED)
async def test_a_name_at_a_public_address_is_not(address: str) -> None:
    async with calling(Names(hooks_example=[address])) as out:
        await out.vet("https://hooks.example/")


def test_nothing_private_to_the_standard_library_is_public_here() -> None:
    out = Outbound(Settings(), tls=NO_TLS)
    for first in range(256):
        for second in range(256):
            for text in (f"{first}.{second}.0.1", f"{first:02x}{second:02x}::1"):
                assert ip_address(text).is_global or not out._may_call(text), text


@pytest.mark.parametrize(
    "answers",
    [
        [PUBLIC, "127.0.0.1"],
        ["10.0.0.1", PUBLIC],
        [PUBLIC, "::1"],
        ["2606:4700::1", PUBLIC, PUBLIC, PUBLIC, PUBLIC, PUBLIC, "::ffff:10.0.0.1"],
    ],
)
async def test_one_private_address_among_public_ones_is_enough(
    answers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connected = watch_connections(monkeypatch)
    async with calling(Names(hooks_example=answers)) as out:
        with pytest.raises(Refused):
            await out.vet("https://hooks.example/")
        assert await out.post("https://hooks.example/", {}, b"") == "refused"
    assert not connected


def watch_connections(
    monkeypatch: pytest.MonkeyPatch, hang: tuple[str, ...] = ()
) -> list[tuple[str, int]]:
    """Record where is connected to; connections to what is not loopback fail, or hang."""
    connected: list[tuple[str, int]] = []
    real = httpcore2.AnyIOBackend.connect_tcp

    async def connect(self, host, port, timeout=None, **rest):  # noqa: ASYNC109
        connected.append((host, port))
        if host in hang:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await asyncio.Event().wait()
            raise httpcore2.ConnectTimeout
        if not ip_address(host).is_loopback:
            raise httpcore2.ConnectError
        return await real(self, host, port, timeout=timeout, **rest)

    monkeypatch.setattr(httpcore2.AnyIOBackend, "connect_tcp", connect)
    return connected


async def test_a_name_that_becomes_loopback_after_it_was_vetted_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connected = watch_connections(monkeypatch)
    async with calling(Names(rebind_example=[[PUBLIC], ["127.0.0.1"]])) as out:
        await out.vet("https://rebind.example/")
        assert await out.post("https://rebind.example/", {}, b"") == "refused"
    assert not connected


async def test_the_address_that_was_judged_is_the_one_that_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connected = watch_connections(monkeypatch)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("resolved again"))
    names = Names(rebind_example=[[PUBLIC], ["127.0.0.1"]])
    async with calling(names) as out:
        assert await out.post("https://rebind.example:8443/", {}, b"") == "unreachable"
        assert connected == [(PUBLIC, 8443)]
        assert names.asked == ["rebind.example"]
        assert await out.post("https://rebind.example:8443/", {}, b"") == "refused"
        assert len(connected) == 1


async def test_of_two_receivers_behind_one_name_only_the_judged_one_is_called() -> None:
    async with (
        receiving(reply()) as good,
        receiving(reply(), "127.0.0.2", good.port) as bad,
        calling(
            Names(rebind_example=[["127.0.0.1"], ["127.0.0.2"]]),
            outbound_http=True,
            outbound_private=("127.0.0.1",),
            outbound_ports=(good.port,),
        ) as out,
    ):
        url = f"http://rebind.example:{good.port}/hook"
        # The kept connection to the good one does not answer for the other address.
        assert [await out.post(url, {}, b"{}") for _ in range(3)] == ["2xx", "refused", "refused"]
        assert (len(good.calls), bad.connections) == (1, 0)


async def test_private_networks_may_be_called_when_the_setting_names_them() -> None:
    async with calling(outbound_private=("127.0.0.0/8", "fd00::/16")) as out:
        for url in ("https://127.0.0.1/", "https://[::ffff:127.0.0.1]/", "https://[fd00::1]/"):
            await out.vet(url)
        for url in ("https://10.0.0.1/", "https://[fd01::1]/", "https://[::1]/", "https://127.1/"):
            with pytest.raises(Refused):
                await out.vet(url)


async def test_ports_and_http_are_those_of_the_settings() -> None:
    names = Names(hooks_example=[PUBLIC])
    async with calling(names, outbound_http=True, outbound_ports=(80, 9000)) as out:
        for url in ("http://hooks.example/", "https://hooks.example:9000/"):
            await out.vet(url)
        with pytest.raises(Refused, match=r"port is 443 and has to be one of 80, 9000\."):
            await out.vet("https://hooks.example/")
    async with calling(names, outbound_http=True) as out:
        with pytest.raises(Refused, match="port is 80"):
            await out.vet("http://hooks.example/")
    async with calling(names) as out:
        with pytest.raises(Refused, match=r"begin with https://\."):
            await out.vet("http://hooks.example:443/")


async def test_who_asks_does_not_learn_which_private_names_there_are(short: None) -> None:
    async def slow(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    async def missing(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    said, statuses = set(), []
    for resolver in (missing, slow, Names(db_internal=["10.0.0.5"]), Names(db_internal=[])):
        async with calling(resolver) as out:
            with pytest.raises(Refused) as refused:
                await out.vet("https://db.internal/")
            said.add(str(refused.value))
            assert refused.value.__cause__ is None
            statuses.append(await out.post("https://db.internal/", {}, b""))
    assert len(said) == 1
    assert "10.0.0.5" not in said.pop()
    assert statuses == ["unreachable", "timeout", "refused", "unreachable"]


async def test_the_system_resolves_when_nothing_else_does() -> None:
    async with receiving(reply()) as receiver:
        assert await post_to(receiver, host="localhost") == "2xx"
        assert receiver.calls[0].headers["host"] == f"localhost:{receiver.port}"
        async with calling() as out:
            for url in ("https://localhost/", "https://no-such-name.invalid/"):
                with pytest.raises(Refused):
                    await out.vet(url)


# What is sent


async def test_the_call_as_the_receiver_gets_it() -> None:
    names = Names(hooks_example=["127.0.0.1"])
    async with (
        receiving(reply()) as receiver,
        calling(
            names,
            outbound_http=True,
            outbound_private=LOOPBACK,
            outbound_ports=(receiver.port,),
        ) as out,
    ):
        url = f"http://Hooks.Example:{receiver.port}?a=b/c"
        assert await out.post(url, {"webhook-id": "msg_1", "Host": "x"}, b'{"a":1}') == "2xx"
        (call,) = receiver.calls
        assert call.line == "POST /?a=b/c HTTP/1.1"
        assert call.headers == {
            "host": f"hooks.example:{receiver.port}",
            "content-type": "application/json",
            "content-length": "7",
            "user-agent": "switchboard",
            "webhook-id": "msg_1",
        }
        assert call.body == b'{"a":1}'


async def test_an_ipv6_receiver() -> None:
    async with receiving(reply(), "::1") as receiver:
        assert await post_to(receiver, host="[::1]") == "2xx"
        assert receiver.calls[0].headers["host"] == f"[::1]:{receiver.port}"


async def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving(reply("502 Proxy")) as proxy, receiving(reply()) as receiver:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            monkeypatch.setenv(name.upper(), f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert await post_to(receiver, Names(hooks_example=["127.0.0.1"]), "hooks.example") == "2xx"
        assert proxy.connections == 0


async def test_a_connection_is_used_again_for_the_same_name_and_address_only() -> None:
    addresses = {"a.example": "127.0.0.1", "b.example": "127.0.0.1"}

    async def resolver(host: str, port: int) -> list[str]:
        return [addresses[host]]

    cookie = "Set-Cookie: session=1; Path=/"
    async with (
        receiving(reply("200 OK", cookie)) as receiver,
        receiving(reply(), "127.0.0.2", receiver.port) as moved,
        calling(
            resolver,
            outbound_http=True,
            outbound_private=LOOPBACK,
            outbound_ports=(receiver.port,),
        ) as out,
    ):
        for name in ("a", "a", "b", "a", "b"):
            url = f"http://{name}.example:{receiver.port}/"
            assert await out.post(url, {}, b"{}") == "2xx"
        hosts = [(call.headers["host"].split(".")[0], call.connection) for call in receiver.calls]
        assert hosts == [("a", 1), ("a", 1), ("b", 2), ("a", 1), ("b", 2)]
        assert not any("cookie" in call.headers for call in receiver.calls)
        addresses["a.example"] = "127.0.0.2"
        assert await out.post(f"http://a.example:{receiver.port}/", {}, b"{}") == "2xx"
        assert (len(receiver.calls), len(moved.calls)) == (5, 1)


async def test_the_next_address_is_tried_when_one_does_not_connect(
    monkeypatch: pytest.MonkeyPatch, short: None
) -> None:
    connected = watch_connections(monkeypatch, hang=("127.0.0.9",))
    names = Names(hooks_example=["127.0.0.9", "::1", "127.0.0.1"])
    async with receiving(reply()) as receiver:
        assert await post_to(receiver, names, "hooks.example") == "2xx"
        assert [host for host, _ in connected] == ["127.0.0.9", "::1", "127.0.0.1"]
        assert len(receiver.calls) == 1
    connected.clear()
    names = Names(hooks_example=[f"127.0.0.{number}" for number in range(50, 70)])
    assert await post_to(receiver, names, "hooks.example") == "unreachable"
    assert len(connected) == 4, "not all that a name may list"


async def test_a_call_that_was_sent_is_not_sent_to_the_next_address() -> None:
    names = Names(hooks_example=["127.0.0.1", "127.0.0.2"])
    async with (
        receiving(hang_up) as first,
        receiving(reply(), "127.0.0.2", first.port) as second,
    ):
        assert await post_to(first, names, "hooks.example") == "unreachable"
        assert (len(first.calls), second.connections) == (1, 0)


# Fault 39: what comes back


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()


NEVER = b""


async def begin_and_stop(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegin")
    writer.close()


async def drip_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(10_000):
        writer.write(b"X-%d: 1\r\n" % number)
        await writer.drain()
        await asyncio.sleep(0.01)


async def drip_body(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
    for _ in range(10_000):
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)


async def too_late(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(SHORT * 1.2)  # as 6 s are to 5
    writer.write(reply())


def forever(start: bytes, piece: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        while True:
            writer.write(piece)
            await writer.drain()

    return answer


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (reply("200 OK", body=b"thanks"), "2xx"),
        (reply("204 No Content"), "2xx"),
        (reply("202"), "2xx"),
        (b"HTTP/1.0 200 OK\r\n\r\n", "2xx"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + reply(), "2xx"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "2xx"),
        (reply("301 Moved", "Location: http://127.0.0.1/"), "3xx"),
        (reply("304 Not Modified"), "3xx"),
        (reply("404 Not Found", body=b"?"), "4xx"),
        (reply("410 Gone"), "4xx"),
        (reply("429 Slow Down", "Retry-After: 3600"), "4xx"),
        (reply("500 Oops", body=b"?"), "5xx"),
        (reply("503 Later"), "5xx"),
        (b"garbage\r\n\r\n", "unreachable"),
        (b"\x16\x03\x01\x02\x00\x01" * 100, "unreachable"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "unreachable"),
        (b"HTTP/1.1 OK\r\n\r\n", "unreachable"),
        (b"HTTP/2 200\r\n\r\n", "unreachable"),
        (reply("99 Low"), "unreachable"),
        (reply("600 High"), "unreachable"),
        (reply("999 Higher"), "unreachable"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", "unreachable"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "unreachable"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "unreachable"),
        (hang_up, "unreachable"),
        (begin_and_stop, "unreachable"),
    ],
)
async def test_only_the_class_of_the_status_comes_back(answer: bytes | Answer, status: str) -> None:
    async def answer_and_close(writer: asyncio.StreamWriter) -> None:
        assert isinstance(answer, bytes)
        writer.write(answer)
        writer.close()

    async with receiving(answer_and_close if isinstance(answer, bytes) else answer) as receiver:
        assert await post_to(receiver) == status
        assert len(receiver.calls) == 1, "once, whatever came back"


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(code: int) -> None:
    async with receiving(reply()) as elsewhere:
        location = f"Location: http://127.0.0.1:{elsewhere.port}/"
        async with receiving(reply(f"{code} There", location)) as receiver:
            assert await post_to(receiver) == "3xx"
        assert elsewhere.connections == 0


@pytest.mark.parametrize("answer", [NEVER, too_late, drip_head, drip_body])
async def test_one_deadline_covers_the_whole_call(answer: bytes | Answer, short: None) -> None:
    async with receiving(answer) as receiver:
        began = time.monotonic()
        assert await post_to(receiver) == "timeout"
        assert SHORT * 0.9 < time.monotonic() - began < SOON
        await until(lambda: receiver.open == 0, "the connection is closed")


async def test_the_look_up_counts_too(short: None) -> None:
    async def slow(host: str, port: int) -> list[str]:
        await asyncio.sleep(SHORT * 0.7)
        return ["127.0.0.1"]

    async def slow_answer(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(SHORT * 0.7)
        writer.write(reply())

    async with receiving(slow_answer) as receiver:
        assert await post_to(receiver, slow, "hooks.example") == "timeout"


async def test_a_port_where_nobody_listens() -> None:
    async with receiving(reply()) as receiver:
        pass
    assert await post_to(receiver) == "unreachable"


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (reply(body=b"x" * 10_000_000), "2xx"),
        (reply("500 Oops", body=b"x" * 10_000_000), "5xx"),
        (forever(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 10_000), "2xx"),
        (
            forever(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 999),
            "2xx",
        ),
        (
            forever(reply("200 OK", "Content-Encoding: gzip", body=b"\x1f\x8b"), b"\0" * 9999),
            "2xx",
        ),
        (forever(b"HTTP/1.1 200 OK\r\n", b"X-Y: z\r\n" * 999), "unreachable"),
        (forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 99), "unreachable"),
        (forever(b"", b"x" * 9999), "unreachable"),
    ],
)
async def test_no_more_than_64_kib_of_an_answer_are_read(
    answer: bytes | Answer, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    real = outbound._Stream.read

    async def count(self, max_bytes, timeout=None):  # noqa: ASYNC109
        data = await real(self, max_bytes, timeout)
        read.append(len(data))
        return data

    monkeypatch.setattr(outbound._Stream, "read", count)
    async with receiving(answer) as receiver:
        assert await post_to(receiver) == status
        assert sum(read) <= 64 * 1024
        await until(lambda: receiver.open == 0, "the connection is closed")


async def test_an_answer_of_64_kib_is_read_again_and_again() -> None:
    async with (
        receiving(reply(body=b"x" * 60_000)) as receiver,
        calling(
            outbound_http=True, outbound_private=LOOPBACK, outbound_ports=(receiver.port,)
        ) as out,
    ):
        for _ in range(4):
            assert await out.post(f"http://127.0.0.1:{receiver.port}/", {}, b"{}") == "2xx"
        assert receiver.connections == 1, "each answer has its own limit"


async def test_receivers_that_hang_use_up_nothing(
    short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbound, "CONNECTIONS", 4)
    async with receiving(NEVER) as hanging, receiving(reply()) as receiver:
        ports = (hanging.port, receiver.port)
        options = {"outbound_http": True, "outbound_private": LOOPBACK, "outbound_ports": ports}
        async with calling(**options) as out:
            url = f"http://127.0.0.1:{hanging.port}/"
            statuses = await asyncio.gather(*(out.post(url, {}, b"") for _ in range(20)))
            assert statuses == ["timeout"] * 20
            assert not out._pool.connections
            assert await out.post(f"http://127.0.0.1:{receiver.port}/", {}, b"") == "2xx"
            await until(lambda: hanging.open == 0, "the connections are closed")


async def test_a_call_that_is_cancelled_closes_its_connection() -> None:
    async with receiving(NEVER) as receiver:
        call = asyncio.create_task(post_to(receiver))
        await until(lambda: bool(receiver.calls), "it is there")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: receiver.open == 0, "it is closed")


async def test_the_log_says_why_and_nothing_of_the_path(caplog: pytest.LogCaptureFixture) -> None:
    async def echo(writer: asyncio.StreamWriter) -> None:
        writer.write(b"POST /hook?a=1 HTTP/1.1\r\n\r\n")
        writer.close()

    caplog.set_level(logging.INFO)
    async with receiving(echo) as receiver:
        assert await post_to(receiver) == "unreachable"
    async with calling() as out:
        assert await out.post("https://hooks.example:1/hook?a=1", {}, b"") == "refused"
    lines = [record.fields for record in caplog.records if hasattr(record, "fields")]
    assert [line["status"] for line in lines] == ["unreachable", "refused"]
    assert "port is 1" in lines[1]["said"]
    assert "hook?" not in json.dumps(lines)


# TLS


@dataclass
class Authority:
    """Makes certificates.

    Attributes:
        trusting: a client's context that trusts it, and nobody else.
    """

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    trusting: ssl.SSLContext

    @classmethod
    def make(cls, folder: Path) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = certify("authority", key.public_key(), key, None, authority=True)
        pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
        return cls(folder, key, certificate, ssl.create_default_context(cadata=pem))

    def serving(self, *names: str, self_signed: bool = False, days: int = 1) -> ssl.SSLContext:
        """A server's context with a certificate for these names."""
        key = ec.generate_private_key(ec.SECP256R1())
        signer, issuer = (key, None) if self_signed else (self.key, self.certificate)
        certificate = certify(names[0], key.public_key(), signer, issuer, names=names, days=days)
        file = self.folder / f"{os.urandom(4).hex()}.pem"
        file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context


def certify(
    subject: str,
    public: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    names: tuple[str, ...] = (),
    days: int = 1,
    authority: bool = False,
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    usage = dict.fromkeys(
        (
            *("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
            *("encipher_only", "decipher_only"),
        ),
        False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer.subject if issuer else name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - datetime.timedelta(days=10))
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True, key_cert_sign=authority, crl_sign=authority, **usage
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if names:
        alternatives = [
            x509.IPAddress(ip_address(name)) if name[0].isdigit() else x509.DNSName(name)
            for name in names
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return builder.sign(signer, hashes.SHA256())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("tls"))


async def post_tls(
    receiver: Receiver, host: str = "hooks.example", tls: ssl.SSLContext | None = None
) -> str:
    names = Names(hooks_example=["127.0.0.1"])
    options = {"outbound_private": LOOPBACK, "outbound_ports": (receiver.port,)}
    async with calling(names, tls, **options) as out:
        return await out.post(f"https://{host}:{receiver.port}/hook", {}, b"{}")


async def test_a_certificate_for_the_name_is_accepted_at_the_judged_address(
    authority: Authority,
) -> None:
    async with receiving(reply(), tls=authority.serving("hooks.example")) as receiver:
        assert await post_tls(receiver, tls=authority.trusting) == "2xx"
        assert receiver.sni == ["hooks.example"]
        assert receiver.calls[0].headers["host"] == f"hooks.example:{receiver.port}"


async def test_a_certificate_for_an_address_is_accepted_when_the_url_names_it(
    authority: Authority,
) -> None:
    async with receiving(reply(), tls=authority.serving("127.0.0.1")) as receiver:
        assert await post_tls(receiver, "127.0.0.1", authority.trusting) == "2xx"
        assert await post_tls(receiver, tls=authority.trusting) == "tls"


@pytest.mark.parametrize("name", ["other.example", "127.0.0.1", "example", "a.hooks.example"])
async def test_a_certificate_for_another_name_is_not_accepted(
    authority: Authority, name: str
) -> None:
    async with receiving(reply(), tls=authority.serving(name)) as receiver:
        assert await post_tls(receiver, tls=authority.trusting) == "tls"
        assert not receiver.calls


async def test_certificates_that_nobody_vouches_for_are_not_accepted(authority: Authority) -> None:
    self_signed = authority.serving("hooks.example", self_signed=True)
    expired = authority.serving("hooks.example", days=-1)
    for serving, trusting in (
        (self_signed, authority.trusting),
        (self_signed, None),
        (expired, authority.trusting),
        (authority.serving("hooks.example"), None),
    ):
        async with receiving(reply(), tls=serving) as receiver:
            assert await post_tls(receiver, tls=trusting) == "tls"
            assert not receiver.calls


async def test_authorities_of_the_environment_are_not_trusted(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "authorities.pem"
    file.write_bytes(authority.certificate.public_bytes(serialization.Encoding.PEM))
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    async with receiving(reply(), tls=authority.serving("hooks.example")) as receiver:
        assert await post_tls(receiver) == "tls"


async def test_tls_is_not_given_up_for_a_server_without(authority: Authority) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with server:
        receiver = Receiver(b"", server.sockets[0].getsockname()[1])
        assert await post_tls(receiver, tls=authority.trusting) == "tls"


@pytest.mark.parametrize(("hangs", "status"), [(True, "timeout"), (False, "unreachable")])
async def test_a_server_that_makes_no_tls_is_left_and_its_neighbour_not_tried(
    authority: Authority, short: None, hangs: bool, status: str
) -> None:
    ended = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if hangs:
            with contextlib.suppress(ConnectionError):
                while await reader.read(1000):
                    pass
        writer.close()
        ended.set()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    names = Names(hooks_example=["127.0.0.1", "127.0.0.2"])
    serving = authority.serving("hooks.example")
    async with server, receiving(reply(), "127.0.0.2", port, serving) as second:
        options = {"outbound_private": LOOPBACK, "outbound_ports": (port,)}
        async with calling(names, authority.trusting, **options) as out:
            assert await out.post(f"https://hooks.example:{port}/", {}, b"{}") == status
            async with asyncio.timeout(10):
                await ended.wait()
        assert second.connections == 0


async def test_tls_connections_are_not_shared_between_names(authority: Authority) -> None:
    async def resolver(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async with receiving(reply(), tls=authority.serving("a.example")) as receiver:
        options = {"outbound_private": LOOPBACK, "outbound_ports": (receiver.port,)}
        async with calling(resolver, authority.trusting, **options) as out:
            statuses = [
                await out.post(f"https://{name}.example:{receiver.port}/", {}, b"{}")
                for name in ("a", "b", "a")
            ]
        assert statuses == ["2xx", "tls", "2xx"]
        assert receiver.sni[:2] == ["a.example", "b.example"]


# Signatures


def secret(number: int, size: int = 32) -> bytes:
    return b"whsec_" + base64.b64encode(bytes([number]) * size)


def test_signatures_are_good_to_the_libraries_of_receivers() -> None:
    body = json.dumps({"summary": "größer"}, ensure_ascii=False).encode()
    now = int(time.time())
    headers = sign("msg_2b", now, body, [secret(1), secret(2, 24)])
    for text in (secret(1), secret(2, 24)):
        assert standardwebhooks.Webhook(text.decode()).verify(body, headers) == json.loads(body)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(secret(3).decode()).verify(body, headers)
    for changed in ({"webhook-id": "msg_2c"}, {"webhook-timestamp": str(now + 1)}):
        with pytest.raises(standardwebhooks.WebhookVerificationError):
            standardwebhooks.Webhook(secret(1).decode()).verify(body, {**headers, **changed})


def test_signatures_as_the_scheme_writes_them() -> None:
    # The example of the specification's own libraries.
    text = b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    assert sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body, [text]) == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize(
    "secrets", [[], [b""], [b"whsec_"], [b"whsec_!"], [b"plain text"], [secret(1), b"whsec_"]]
)
def test_nothing_is_signed_without_a_key(secrets: list[bytes]) -> None:
    with pytest.raises(ValueError, match="whsec_"):
        sign("msg_1", 1, b"{}", secrets)
