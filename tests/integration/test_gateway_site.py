"""The ASGI application as a whole: static files, the console's middleware, unknown sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction
from channels.testing import ApplicationCommunicator, WebsocketCommunicator
from django.test import AsyncClient, Client
from django.urls import resolve

from gateway.background import spawn
from gateway.relay import Relay, relay_use
from haltline import bridge
from haltline.server import BREAK, Guard, endpoint


@pytest.fixture(autouse=True)
def no_engine() -> Iterator[None]:
    restore = relay_use(Relay({}))
    yield
    restore()


async def get(path: str, *, host: str = "localhost") -> tuple[int, dict[bytes, bytes], bytes]:
    from haltline.asgi import application

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": [(b"host", host.encode())],
    }
    http = ApplicationCommunicator(application, scope)
    await http.send_input({"type": "http.request", "body": b"", "more_body": False})
    start = await http.receive_output(5)
    body = b""
    while True:
        part = await http.receive_output(5)
        body += part.get("body", b"")
        if not part.get("more_body"):
            break
    await http.wait()
    return start["status"], dict(start["headers"]), body


async def test_it_serves_static_files_from_where_they_lie() -> None:
    status, headers, body = await get("/static/admin/css/base.css")
    assert (status, headers[b"content-type"].partition(b";")[0]) == (200, b"text/css")
    assert body
    assert (await get("/static/../manage.py"))[0] == 404


@pytest.mark.django_db(transaction=True)
async def test_it_keeps_the_console_s_middleware_off_the_api() -> None:
    _, console, _ = await get("/admin/login/")
    assert b"X-Frame-Options" in console
    status, api, _ = await get("/health/live")
    assert status == 200
    assert b"X-Frame-Options" not in api


async def test_it_answers_only_to_its_own_names() -> None:
    for path in ("/v1/models", "/v1/requests", "/admin/login/", "/nowhere"):
        status, headers, body = await get(path, host="evil.example")
        error = json.loads(body)["error"]
        assert (status, error["type"]) == (400, "invalid_request_error"), path
        assert "HALTLINE_ALLOWED_HOSTS" in error["message"]
        assert headers[b"Content-Type"] == b"application/json"
    status, _, _ = await get("/health/live", host="10.0.0.7")
    assert status == 200
    status, _, _ = await get("/nowhere")
    assert status == 404


def test_it_answers_only_to_its_own_names_in_sync_mode_too() -> None:
    assert Client().get("/v1/models", headers={"host": "evil.example"}).status_code == 400


@pytest.mark.django_db
def test_it_wants_the_token_of_a_form_in_the_console(staff: Any) -> None:
    browser = Client(enforce_csrf_checks=True)
    answer = browser.post("/admin/login/", {"username": "boss", "password": "x"})
    assert answer.status_code == 403


@pytest.mark.django_db(transaction=True)
async def test_it_asks_for_the_token_in_async_mode_too(staff: Any) -> None:
    browser = AsyncClient(enforce_csrf_checks=True)
    answer = await browser.post("/admin/login/", {"username": "boss", "password": "x"})
    assert answer.status_code == 403


@pytest.mark.django_db
def test_it_shows_the_schema_to_staff(staff: Any) -> None:
    browser = Client()
    assert browser.get("/schema/openapi.json").status_code == 401
    browser.force_login(staff)
    assert browser.get("/schema/openapi.json").status_code == 200
    assert b"swagger" in browser.get("/schema/").content


async def test_it_closes_a_socket_that_leads_nowhere() -> None:
    from haltline.asgi import application

    socket = WebsocketCommunicator(application, "/ws/nowhere/")
    assert (await socket.connect())[0]
    assert await socket.receive_output() == {"type": "websocket.close", "code": 4404}


async def test_it_borrows_no_thread_for_an_async_view() -> None:
    """More waiters than threads do not keep a synchronous view from running."""
    release, ran = asyncio.Event(), []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        if scope["path"] == "/v1/models":
            await release.wait()
        ran.append(scope["path"])

    found = bridge.Bridge(app, threads=1)
    waiters = [asyncio.create_task(found({"path": "/v1/models"}, None, None)) for _ in range(3)]  # type: ignore[arg-type]
    await asyncio.wait_for(found({"path": "/admin/"}, None, None), 5)  # type: ignore[arg-type]
    assert ran == ["/admin/"]
    release.set()
    await asyncio.gather(*waiters)


def test_it_makes_async_views_of_the_whole_inference_api() -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/models", "/health/ready"):
        assert iscoroutinefunction(resolve(path).func)


async def test_it_breaks_a_response_off_when_the_application_fails() -> None:
    sent: list[Any] = []

    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        raise RuntimeError("in the middle")

    async def send(message: Any) -> None:
        sent.append(message)

    await Guard(app)({"type": "http", "path": "/"}, None, send)  # type: ignore[arg-type]
    assert sent == [{"type": BREAK}]


def test_it_listens_where_it_is_told() -> None:
    assert endpoint(bind="127.0.0.1", port=80) == "tcp:port=80:interface=127.0.0.1:backlog=2048"
    assert r"interface=\:\:1:" in endpoint(bind="[::1]", port=80)
    assert endpoint(bind="", port=0, fd=5) == "fd:fileno=5"


async def test_it_reports_background_work_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise RuntimeError("lost in the dark")

    task = spawn(fail(), name="a chore")
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert "a chore failed" in caplog.text
