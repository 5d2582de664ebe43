"""What only a socket has: files, lengths, addresses, TLS."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
from pathlib import Path

import pytest

from inference.bus import Connection, ConnectionClosedError
from inference.bus.address import MAX_PATH_BYTES, TcpAddress, UnixAddress, parse
from inference.bus.socket import FIRST_FRAME_BYTES, SocketBus
from inference.wire import MAX_FRAME_BYTES, Ask, Text, encode


async def echo(connection: Connection) -> None:
    while True:
        connection.send(await connection.receive())


async def test_it_lets_only_this_user_at_the_socket_file(folder: Path) -> None:
    path = folder / "run" / "engine.sock"
    server = await SocketBus(f"unix:{path}").serve(echo)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    await server.close()
    assert not path.exists()


async def test_it_replaces_a_socket_file_that_nobody_listens_at(folder: Path) -> None:
    path = folder / "engine.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    bus = SocketBus(f"unix:{path}")
    server = await bus.serve(echo)
    client = await bus.connect()
    client.send(Ask(call=3))
    assert await client.receive() == Ask(call=3)
    await client.close()
    await server.close()


async def test_it_keeps_a_file_that_is_no_socket(folder: Path) -> None:
    path = folder / "notes.txt"
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        await SocketBus(f"unix:{path}").serve(echo)
    assert path.read_text() == "mine"


async def test_it_leaves_a_successors_socket_file_alone(folder: Path) -> None:
    path = folder / "engine.sock"
    bus = SocketBus(f"unix:{path}")
    old = await bus.serve(echo)
    path.unlink()
    new = await bus.serve(echo)
    await old.close()
    client = await bus.connect()
    await client.close()
    await new.close()


async def test_it_ends_a_connection_that_announces_too_long_a_frame(folder: Path) -> None:
    path = folder / "engine.sock"
    server = await SocketBus(f"unix:{path}").serve(echo)
    reader, writer = await asyncio.open_unix_connection(str(path))
    frame = encode(Ask(call=1))
    writer.write(struct.pack(">I", len(frame)) + frame + struct.pack(">I", MAX_FRAME_BYTES + 1))
    assert (await reader.read())[4:] == frame
    writer.close()
    await server.close()


async def test_it_takes_only_a_short_first_frame(folder: Path) -> None:
    bus = SocketBus(f"unix:{folder}/engine.sock")
    server = await bus.serve(echo)
    client = await bus.connect()
    client.send(Text(call=1, text="x" * FIRST_FRAME_BYTES))
    with pytest.raises(ConnectionClosedError):
        await client.receive()
    await client.close()
    await server.close()


async def test_it_carries_long_frames_after_the_first(folder: Path) -> None:
    bus = SocketBus(f"unix:{folder}/engine.sock")
    server = await bus.serve(echo)
    client = await bus.connect()
    client.send(Ask(call=1))
    await client.receive()
    long = Text(call=2, text="x" * (5 * 1024 * 1024))
    client.send(long)
    assert await client.receive() == long
    await client.close()
    await server.close()


async def test_it_ends_cleanly_in_the_middle_of_a_frame(folder: Path) -> None:
    ended = asyncio.Event()

    async def watch(connection: Connection) -> None:
        try:
            await connection.receive()
        finally:
            ended.set()

    server = await SocketBus(f"unix:{folder}/engine.sock").serve(watch)
    _, writer = await asyncio.open_unix_connection(f"{folder}/engine.sock")
    writer.write(struct.pack(">I", 100) + b"half")
    writer.close()
    async with asyncio.timeout(5):
        await ended.wait()
    await server.close()


async def test_it_speaks_tcp() -> None:
    server = await SocketBus("tcp://127.0.0.1:0").serve(echo)
    assert not server.url.endswith(":0")
    client = await SocketBus(server.url).connect()
    client.send(Ask(call=1))
    assert await client.receive() == Ask(call=1)
    await client.close()
    await server.close()


async def test_it_speaks_tls_with_a_certificate_that_the_client_trusts(folder: Path) -> None:
    await _make_certificate(folder)
    files = f"cert={folder}/cert.pem&key={folder}/key.pem"
    server = await SocketBus(f"tls://localhost:0?{files}").serve(echo)
    client = await SocketBus(f"{server.url}?ca={folder}/cert.pem").connect()
    client.send(Ask(call=1))
    assert await client.receive() == Ask(call=1)
    await client.close()
    with pytest.raises(ConnectionError):
        await SocketBus(server.url).connect()
    await server.close()


def test_it_reads_addresses() -> None:
    assert parse("unix:/run/h.sock") == UnixAddress("/run/h.sock") == parse("unix:///run/h.sock")
    assert parse("tcp://[::1]:7000") == TcpAddress(host="::1", port=7000)
    assert parse("tls://h:1?ca=/a.pem") == TcpAddress(host="h", port=1, tls=True, ca="/a.pem")
    assert parse("tcp://[::1]:7000").url == "tcp://[::1]:7000"
    assert TcpAddress(host="localhost", port=1).is_loopback
    assert not TcpAddress(host="0.0.0.0", port=1).is_loopback


@pytest.mark.parametrize(
    "url",
    ["", "http://h:1", "unix:relative", "tcp://h", "tcp://:1", "tls://h:1?x=1", "tcp://h:99999",
     "tcp://h:1?ca=/a", f"unix:/{'x' * MAX_PATH_BYTES}"],
)  # fmt: skip
def test_it_refuses_what_is_no_address(url: str) -> None:
    with pytest.raises(ValueError, match=r"address|path|ertificate|ort"):
        SocketBus(url)


async def _make_certificate(folder: Path) -> None:
    config = folder / "openssl.cnf"
    config.write_text("[req]\ndistinguished_name=dn\n[dn]\n")
    openssl = await asyncio.create_subprocess_exec(
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
        "-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem", "-days", "2",
        "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-config", str(config),
        stderr=asyncio.subprocess.DEVNULL, env=os.environ,
    )  # fmt: skip
    assert await openssl.wait() == 0
