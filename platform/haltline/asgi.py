"""The ASGI application: static files, websockets, and Django behind its warm threads."""

from __future__ import annotations

import os
from typing import Any

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
from django.urls import re_path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "haltline.settings")
django_app: Any = get_asgi_application()

from gateway.relay import relay_get  # noqa: E402 - the apps must be loaded first
from haltline.bridge import App, Bridge, Receive, Scope, Send, static_files  # noqa: E402
from ledger.routing import websocket_urlpatterns  # noqa: E402

NOT_FOUND = 4404


class WithRelay:
    """Starts the relay with the first request, whichever server runs this application."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        relay_get().start()
        await self._app(scope, receive, send)


async def no_such_socket(_scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.close", "code": NOT_FOUND})


_rest: Any = no_such_socket  # Channels routes to applications where Django routes to views
_sockets: list[Any] = [*websocket_urlpatterns, re_path(r"", _rest)]

application = ProtocolTypeRouter(
    {
        "http": static_files(WithRelay(Bridge(django_app))),
        "websocket": URLRouter(_sockets),
    }
)
