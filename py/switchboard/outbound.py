"""Calls to addresses that others wrote down: judged first, and made to what was judged only.

The URL is judged, its host is resolved, every address is judged, and the connection goes to one of
these addresses: all of it again before every call, since a name may resolve to something else each
time. Host, SNI and the certificate stay those of the name. No redirect is followed, no proxy asked,
no cookie kept, and nothing of the answer is given away but the class of its status.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Any

import httpcore2
import httpx2

from switchboard import logs

if TYPE_CHECKING:
    from switchboard.config import Settings

DEADLINE = 5.0  # seconds: look-up, connection, TLS, sending and reading together
ANSWER_LIMIT = 64 * 1024  # bytes, headers included
URL_LIMIT = 2048
CONNECTIONS = 64
KEEP_ALIVE = 1.0  # seconds; longer, and the receiver may close it while it is taken up again
ADDRESSES = 4  # of one name that are tried
LOOK_UPS = 16  # at a time

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]

# Own lists: `ipaddress` takes multicast, NAT64, 6to4, ::127.0.0.1 and fec0::/10 for global.
_DENIED = tuple(
    ip_network(network)
    for network in (
        "0.0.0.0/8",  # this network; 0.0.0.0 is loopback
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared by carriers; clouds have services in it
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's own services for its machines
        "169.254.0.0/16",  # link-local; 169.254.169.254 hands out clouds' credentials
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
        # Of IPv6 only 2000::/3 is handed out. The rest is loopback, private (fc00::/7), link- and
        # site-local, multicast, IPv4 in disguise (::/96, 64:ff9b:1::/48), or nothing yet.
        "::/3",
        "4000::/2",
        "8000::/1",
        "2001::/23",  # protocols: Teredo (2001::/32), benchmarks, ORCHID
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
    )
)
_MAPPED = ip_network("::ffff:0:0/96")
_NAT64 = ip_network("64:ff9b::/96")

_PRINTABLE = re.compile(r"[!-~]+")
_AUTHORITY = re.compile(
    r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_.-]+))(?::(?P<port>[0-9]{1,5}))?"
)
_NAME = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?(?:\.(?!\Z)|\Z))+")
_ENDS_IN_A_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_DEFAULT_PORTS = {"https": 443, "http": 80}
_NOT_PUBLIC = "The host has to resolve, and to public addresses only."


class Refused(Exception):  # noqa: N818
    """A URL that is not called; the argument says why, in words that its author may read."""


class _Cut(Exception):  # noqa: N818
    """The answer is longer than what is read of one."""


@dataclass(frozen=True, slots=True)
class Target:
    """A URL in parts; nothing parses it again.

    Attributes:
        scheme: ``https`` or ``http``.
        host: a name, or an address without brackets, in lower case.
        port: the one given, or the scheme's.
        path: with the query.
    """

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """What the Host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


class Outbound:
    """Judges URLs and calls them.

    Args:
        settings: outbound_http, outbound_private and outbound_ports are read.
        resolver: gives the addresses of a host as text, for a host and a port; OSError when there
            are none. The system's unless given.
        tls: what certificates are verified with; the system's authorities unless given.
    """

    def __init__(
        self,
        settings: Settings,
        resolver: Resolver | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._schemes = ("https", "http") if settings.outbound_http else ("https",)
        self._ports = frozenset(settings.outbound_ports)
        self._private = tuple(ip_network(network) for network in settings.outbound_private)
        # Threads of its own: slow name servers of some must not hold up the process's look-ups.
        self._threads = ThreadPoolExecutor(LOOK_UPS, thread_name_prefix="outbound")
        self._resolve = resolver or self._look_up
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=tls or httpx2.create_ssl_context(trust_env=False),
            max_connections=CONNECTIONS,
            keepalive_expiry=KEEP_ALIVE,
            network_backend=_Backend(),
        )

    async def vet(self, url: str) -> None:
        """Judge a URL and what its host resolves to now.

        Raises:
            Refused: it would not be called.
        """
        target = self._read(url)
        try:
            async with asyncio.timeout(DEADLINE):
                await self._addresses(target)
        except OSError:  # the same words as for a private address: who asks learns no names
            raise Refused(_NOT_PUBLIC) from None

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> str:
        """Call a URL once, after judging it.

        Args:
            url: whoever wrote it.
            headers: all but those that HTTP itself asks for; the content is JSON unless they say
                otherwise.
            body: as it is sent.

        Returns:
            ``2xx``, ``3xx``, ``4xx``, ``5xx``; ``timeout``; ``tls`` (no valid certificate for the
            name); ``refused`` (not called, see vet); ``unreachable`` (anything else: no such name,
            no connection, no whole answer in HTTP).
        """
        try:
            async with asyncio.timeout(DEADLINE):
                return await self._post(self._read(url), headers, body)
        except (TimeoutError, httpcore2.TimeoutException) as error:
            return _failed("timeout", error)
        except Refused as error:
            return _failed("refused", error)
        except ssl.SSLError as error:
            return _failed("tls", error)
        except (OSError, httpcore2.NetworkError, httpcore2.RemoteProtocolError, _Cut) as error:
            return _failed("unreachable", error)

    async def aclose(self) -> None:
        """Close what is kept open."""
        await self._pool.aclose()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _read(self, url: str) -> Target:
        if len(url) > URL_LIMIT or not _PRINTABLE.fullmatch(url) or "\\" in url:
            raise Refused(
                f"The URL may hold printable ASCII without \\, at most {URL_LIMIT} characters. "
                "Write a host in other letters as xn--…, anything else as %XX."
            )
        scheme, mark, rest = url.partition("://")
        scheme = scheme.lower()
        if not mark or scheme not in self._schemes:
            raise Refused(f"The URL has to begin with {' or '.join(self._schemes)}://.")
        if "#" in rest:
            raise Refused("The URL may have no fragment: leave out # and what follows.")
        authority = re.split("[/?]", rest, maxsplit=1)[0]
        path = rest[len(authority) :]
        if "@" in authority:
            raise Refused("The URL may hold no user and no password.")
        found = _AUTHORITY.fullmatch(authority.lower())
        if not found or not _is_host(found["v6"], found["name"]):
            raise Refused(
                "The host has to be a name (no dot behind it) or an address in the usual form."
            )
        port = int(found["port"] or _DEFAULT_PORTS[scheme])
        if port not in self._ports:
            ports = ", ".join(map(str, sorted(self._ports)))
            raise Refused(f"The port is {port} and has to be one of {ports}.")
        path = path if path.startswith("/") else "/" + path
        return Target(scheme, found["v6"] or found["name"], port, path)

    async def _addresses(self, target: Target) -> Sequence[str]:
        addresses = await self._resolve(target.host, target.port)
        if not addresses:
            raise OSError("no address")
        if not all(map(self._may_call, addresses)):
            raise Refused(_NOT_PUBLIC)
        return addresses

    def _may_call(self, text: str) -> bool:
        try:
            address = _inner(ip_address(text))
        except ValueError:
            return False
        if any(address in network for network in self._private):
            return True
        return not any(address in network for network in _DENIED)

    async def _look_up(self, host: str, port: int) -> Sequence[str]:
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, look_up)
        return [str(entry[4][0]) for entry in found]

    async def _post(self, target: Target, headers: Mapping[str, str], body: bytes) -> str:
        addresses = (await self._addresses(target))[:ADDRESSES]
        for address in addresses[:-1]:
            with contextlib.suppress(httpcore2.ConnectError, httpcore2.ConnectTimeout):
                return await self._send(target, address, headers, body, DEADLINE / len(addresses))
        return await self._send(target, addresses[-1], headers, body, DEADLINE)

    async def _send(
        self,
        target: Target,
        address: str,
        headers: Mapping[str, str],
        body: bytes,
        connect: float,
    ) -> str:
        # The host of this URL is where to connect and, in the pool, what a connection is kept for:
        # one that was made for another name is no good, neither is one to an older address.
        url = httpcore2.URL(
            scheme=target.scheme,
            host=f"{address}|{target.host}",
            port=target.port,
            target=target.path,
        )
        sent: dict[bytes | str, bytes | str] = {
            "content-type": "application/json",
            "user-agent": "switchboard",
            **{name.lower(): value for name, value in headers.items()},
            "host": target.authority,
        }
        async with self._pool.stream(
            "POST",
            url,
            headers=sent,
            content=body,
            extensions={"sni_hostname": target.host, "timeout": {"connect": connect}},
        ) as answer:
            with contextlib.suppress(_Cut):
                async for _ in answer.aiter_stream():
                    pass
        kind = answer.status // 100
        if kind not in (2, 3, 4, 5):
            raise httpcore2.RemoteProtocolError("no status of HTTP")
        return f"{kind}xx"


class _Backend(httpcore2.AsyncNetworkBackend):
    """Connects to the address in front of the name, and to nothing that has to be resolved."""

    def __init__(self) -> None:
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (the library's interface)
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        address = str(ip_address(host.partition("|")[0]))
        return _Stream(await self._network.connect_tcp(address, port, timeout=timeout))


class _Stream(httpcore2.AsyncNetworkStream):
    """A connection that gives no more than ANSWER_LIMIT bytes of an answer."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._left = ANSWER_LIMIT

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        if not self._left:
            raise _Cut
        data = await self._stream.read(min(max_bytes, self._left), timeout)
        self._left -= len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        self._left = ANSWER_LIMIT  # of the answer to what is sent now
        await self._stream.write(buffer, timeout)

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 (the one of the connection, which stands)
    ) -> httpcore2.AsyncNetworkStream:
        try:
            return _Stream(await self._stream.start_tls(ssl_context, server_hostname))
        except httpcore2.ConnectError as error:
            # Not as a ConnectError, after which the next address would be tried.
            if isinstance(error.__cause__, ssl.SSLError):
                raise error.__cause__ from None
            raise httpcore2.ReadError("closed while TLS was made") from None
        except asyncio.CancelledError:  # the library closes it after other errors only
            await self.aclose()
            raise

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _is_host(v6: str | None, name: str | None) -> bool:
    try:
        if v6:
            IPv6Address(v6)
        # 127.1, 0x7f000001 and 2130706433 are addresses to some, and names to others.
        elif name and _ENDS_IN_A_NUMBER.fullmatch(name):
            IPv4Address(name)
    except ValueError:
        return False
    return bool(v6 or (name and len(name) <= 253 and _NAME.fullmatch(name)))


def _inner(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that a mapped or a translated (NAT64) one leads to."""
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            raise ValueError("an address of one interface")
        if address in _MAPPED or address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _failed(status: str, error: Exception) -> str:
    # The words of an error of HTTP may repeat what the receiver sent, which may repeat the URL.
    said = str(error) if isinstance(error, (Refused, OSError)) else ""
    logs.event("outbound.failed", status=status, error=type(error).__name__, said=said)
    return status
