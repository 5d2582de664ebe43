"""The console in Chromium: sign in, look, stop a request with a reason, read the receipt.

HALTLINE_TEST_SCREENSHOTS names a folder in which to keep pictures of the pages.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gateway.database import in_database
from tests.cast import STAFF_PASSWORD, Member

if TYPE_CHECKING:
    from django.contrib.auth.models import User
    from playwright.async_api import Page
    from pytest_django.live_server_helper import LiveServer

SignIn = Callable[["User"], Awaitable["Page"]]

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\">{{7*7}}<script>document.title='owned'</script>"
)
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture
async def tab(chromium: str) -> AsyncIterator[Page]:
    """A page that fails the test on any script error."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        opened = await browser.new_page(viewport={"width": 1280, "height": 900})
        opened.set_default_timeout(30_000)
        errors: list[str] = []
        opened.on("pageerror", lambda error: errors.append(str(error)))
        yield opened
        await browser.close()
    assert errors == []


@pytest.fixture
def sign_in(tab: Page, live_server: LiveServer, broker: str) -> SignIn:
    async def go(user: User) -> Page:
        await tab.goto(f"{live_server.url}/admin/")
        await tab.fill("#id_username", user.get_username())
        await tab.fill("#id_password", STAFF_PASSWORD)
        await tab.click("button[type=submit]")
        await tab.wait_for_url(f"{live_server.url}/admin/")
        return tab

    return go


async def keep_picture(tab: Page, name: str) -> None:
    folder = os.environ.get("HALTLINE_TEST_SCREENSHOTS")
    if folder:
        # As high as the page: its footer sticks to the bottom of the window.
        height = await tab.evaluate("document.documentElement.scrollHeight")
        await tab.set_viewport_size({"width": 1280, "height": height})
        await tab.screenshot(path=Path(folder) / f"{name}.png", animations="disabled")
        await tab.set_viewport_size({"width": 1280, "height": 900})


def some_requests(owner: Member, operator: Member) -> Any:
    """A few records in different states; gives one that runs."""
    from tests.unit.adminapi.record import finish, open_request, run

    for number in range(4):
        finish(open_request(owner.caller, client_id=f"rollout-{number}"))
    open_request(operator.caller, client_id="evaluation-1")
    live = open_request(owner.caller, client_id="rollout-4", prompt="Tell me a long story.")
    run(live)
    return live


async def test_it_stops_a_request_from_the_list_and_shows_the_receipt(
    sign_in: SignIn, staff: User, owner: Member, operator: Member
) -> None:
    from inference.generation import AbortCause
    from inference.wire import AbortInfo
    from ledger.models import Abort
    from tests.unit.adminapi.record import confirm_abort

    live = await in_database(some_requests, owner, operator)
    tab = await sign_in(staff)
    await tab.get_by_role("link", name="Requests").first.click()
    await tab.wait_for_selector("#result_list")
    await keep_picture(tab, "console-requests")
    await tab.check(f"input.action-select[value={live.pk}]")
    await tab.select_option("select[name=action]", "abort_selected")
    await tab.click("button[name=index]")
    await tab.wait_for_selector("text=Stop 1 live request?")
    await tab.fill("#id_reason", "The step is over.")
    await keep_picture(tab, "console-abort")
    await tab.click("button[name=confirm]")
    await tab.wait_for_selector("#abort-page")
    abort = await in_database(Abort.objects.get)
    assert (abort.cause, abort.requested_by) == ("operator", f"user:{staff.get_username()}")
    info = AbortInfo(id=abort.pk, cause=AbortCause.OPERATOR, reason=abort.reason)
    await in_database(confirm_abort, live, info, text="Once upon a time", tokens=41)
    await tab.reload()
    told = await tab.inner_text("#main")
    for words in ("The step is over.", live.pk, "41", "ABORTED", "DONE"):
        assert words.lower() in told.lower()
    await keep_picture(tab, "console-receipt")
    await tab.get_by_role("link", name=live.pk).first.click()
    await tab.wait_for_selector("#request-page")
    told = await tab.inner_text("#request-page")
    for words in ("Once upon a time", "The step is over.", abort.pk, "41 tokens"):
        assert words in told
    assert await tab.locator("svg.hl-timeline rect").count() >= 3
    await keep_picture(tab, "console-request")


async def test_it_shows_hostile_text_as_text(
    sign_in: SignIn, live_server: LiveServer, staff: User, owner: Member
) -> None:
    from tests.unit.adminapi.record import finish, open_request

    row = await in_database(
        open_request, owner.caller, prompt=HOSTILE, model=HOSTILE, metadata={"note": HOSTILE}
    )
    await in_database(finish, row, text=HOSTILE)
    tab = await sign_in(staff)
    await tab.goto(f"{live_server.url}/admin/ledger/inferencerequest/")
    await tab.wait_for_selector("#result_list")
    assert await tab.title() != "owned"
    await tab.goto(f"{live_server.url}/admin/ledger/inferencerequest/{row.pk}/change/")
    assert HOSTILE in await tab.inner_text("#request-page")
    assert await tab.title() != "owned"
    assert await tab.locator("#request-page img").count() == 0


async def test_it_gives_view_only_staff_no_way_to_stop(
    sign_in: SignIn, live_server: LiveServer, owner: Member
) -> None:
    from tests.unit.adminapi.record import open_request, staff_with

    row = await in_database(open_request, owner.caller)
    tab = await sign_in(await in_database(staff_with, "viewer", "ledger.view_inferencerequest"))
    await tab.goto(f"{live_server.url}/admin/ledger/inferencerequest/")
    assert await tab.locator("select[name=action]").count() == 0
    await tab.goto(f"{live_server.url}/admin/ledger/inferencerequest/{row.pk}/change/")
    assert await tab.locator("#request-page").count() == 1
    assert await tab.locator("#abort-this").count() == 0


async def test_it_fits_a_narrow_screen(
    sign_in: SignIn, live_server: LiveServer, staff: User, owner: Member
) -> None:
    from tests.unit.adminapi.record import finish, open_request

    row = await in_database(open_request, owner.caller)
    await in_database(finish, row)
    tab = await sign_in(staff)
    await tab.set_viewport_size({"width": 390, "height": 844})
    await tab.goto(f"{live_server.url}/admin/ledger/inferencerequest/{row.pk}/change/")
    await tab.wait_for_selector("#request-page")
    assert await tab.evaluate("document.documentElement.scrollWidth") <= 390
