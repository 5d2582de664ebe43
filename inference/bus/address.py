"""Addresses of the bus: what a URL says about where an engine listens and how to speak to it.

It reads URLs and certificates' paths, and opens nothing.
"""

from __future__ import annotations

import ssl
import sys
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from typing import TypeAlias
from urllib.parse import parse_qs, urlsplit

# The kernel's limit for a socket's path, without the closing zero.
MAX_PATH_BYTES = 107 if sys.platform == "linux" else 103
FORMS = "unix:/path, tcp://host:port or tls://host:port?cert=…&key=…&ca=…"


@dataclass(frozen=True, slots=True)
class UnixAddress:
    path: str

    @property
    def url(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpAddress:
    """`tls`: encrypted. `cert` and `key`: this side's certificate; `ca`: who may sign the peer's.

    A server that has a `ca` asks its clients for a certificate too.
    """

    host: str
    port: int
    tls: bool = False
    cert: str | None = None
    key: str | None = None
    ca: str | None = None

    @property
    def url(self) -> str:
        """Without the certificates: they are this side's own affair."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'tcp'}://{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def with_port(self, port: int) -> TcpAddress:
        return replace(self, port=port)

    def server_context(self) -> ssl.SSLContext | None:
        """Raises `ValueError` without a certificate, `OSError` for an unreadable one."""
        if not self.tls:
            return None
        if not self.cert:
            raise ValueError(f"{self.url}: to listen with TLS, add ?cert=…&key=… to the address")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.ca)
        context.load_cert_chain(self.cert, self.key)
        if self.ca:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self) -> ssl.SSLContext | None:
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=self.ca)
        if self.cert:
            context.load_cert_chain(self.cert, self.key)
        return context


Address: TypeAlias = UnixAddress | TcpAddress


def parse(url: str) -> Address:
    """Raises `ValueError`, with a text for whoever wrote the URL."""
    scheme, _, rest = url.partition(":")
    if scheme == "unix":
        return _unix(rest)
    if scheme in {"tcp", "tls"}:
        return _tcp(url)
    raise ValueError(f"{url!r} is no bus address; use {FORMS}")


def _unix(rest: str) -> UnixAddress:
    path = rest.removeprefix("//")
    if not Path(path).is_absolute():
        raise ValueError(f"'unix:{rest}' needs an absolute path")
    if len(path.encode()) > MAX_PATH_BYTES:
        raise ValueError(
            f"the socket path {path!r} is longer than the {MAX_PATH_BYTES} bytes that the system "
            "allows; choose a shorter HALTLINE_HOME or set HALTLINE_BUS_URL"
        )
    return UnixAddress(path)


def _tcp(url: str) -> TcpAddress:
    parts = urlsplit(url)
    files = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    unknown = files.keys() - {"cert", "key", "ca"}
    if not parts.hostname or parts.port is None or parts.path or unknown:
        raise ValueError(f"{url!r} is no bus address; use {FORMS}")
    if files and parts.scheme == "tcp":
        raise ValueError(f"{url!r} names certificates, but tcp:// is not encrypted; use tls://")
    return TcpAddress(host=parts.hostname, port=parts.port, tls=parts.scheme == "tls", **files)
