"""Tests of both pages in a real Chromium; skipped if there is no browser.

Keyboard use, accessibility checks by axe-core, and attacks by another site.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from privirec.app.own_device import OwnDevice
from privirec.app.pages.guard import Guard
from privirec.app.pages.operator import OperatorSite
from privirec.app.pages.person import PersonSite
from privirec.app.pages.web import PageServer
from privirec.device import Store
from privirec.privacy.policy import Policy
from privirec.runtime.enrolment.folders import OperatorFolder

from .a_server import begin
from .browser import axe_script, chromium, emulate, findings, size
from .conftest import ME
from .visitor import Visitor, serving

pytestmark = pytest.mark.check

OPERATOR_PATHS = ("", "clients", "runs", "run?name=monday", "start", "nothing")
PATHS = ("", "history", "search?text=garden", "item?id=7", "left", "policy", "forget", "nothing")
NARROW, WIDE = 320, 1100


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture(scope="module")
def axe() -> str:
    return axe_script()


@pytest.fixture
def page(client: Path) -> Iterator[PageServer]:
    with serving(PersonSite(OwnDevice.at(client))) as server:
        yield server


@pytest.fixture
def opened(browser: Any, page: PageServer) -> Any:
    """Open the page in the browser."""
    browser.get(page.guard.address)
    return browser


def mine(client: Path) -> list[str]:
    with Store(client / "history.db") as store:
        return store.items("me")


def sees(driver: Any, words: str) -> bool:
    """Return True if the page contains a text once it has loaded."""
    from selenium.common.exceptions import WebDriverException

    for _ in range(100):
        try:
            text = driver.find_element("tag name", "main").text
        except WebDriverException:  # the page is being replaced by the next one
            text = ""
        if words in " ".join(text.split()):
            return True
        time.sleep(0.05)
    raise AssertionError(f"{words!r} is not in {text!r}")


def press(driver: Any, *keys: str) -> None:
    """Send keys to the element that has the focus."""
    from selenium.webdriver import ActionChains

    for key in keys:
        ActionChains(driver).send_keys(key).perform()


def focused(driver: Any) -> str:
    return str(driver.switch_to.active_element.accessible_name)


def test_the_token_leaves_the_address_and_scripts_see_no_cookie(
    opened: Any, page: PageServer
) -> None:
    assert "token" not in opened.current_url
    assert opened.current_url.endswith(page.guard.room)
    assert opened.execute_script("return document.cookie") == ""
    (cookie,) = opened.get_cookies()
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert cookie["path"] == page.guard.room
    assert sees(opened, "Because of")


def test_used_with_the_keyboard_alone(opened: Any, client: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    press(opened, Keys.TAB)
    assert focused(opened) == "Skip to the content"
    press(opened, Keys.ENTER)
    press(opened, Keys.TAB, Keys.TAB, Keys.TAB)  # past the shelf and the first title to a button
    name = focused(opened)
    assert name.startswith("I have it (")
    press(opened, Keys.ENTER)
    assert sees(opened, f"Added to your history: {name.removeprefix('I have it (')[:-1]}.")
    assert len(mine(client)) == len(ME) + 1
    opened.find_element("css selector", ".notice button").send_keys(Keys.ENTER)
    assert sees(opened, "Undone:")
    assert mine(client) == sorted(ME)
    opened.get(opened.current_url + "search")
    opened.find_element("id", "text").send_keys("quiet garden" + Keys.ENTER)
    assert sees(opened, "Quiet Garden 10")


def test_a_switch_of_the_policy(opened: Any, client: Path) -> None:
    opened.get(opened.current_url + "policy")
    switch = opened.find_element("name", "takes_part")
    assert switch.aria_role == "switch"
    assert switch.accessible_name == "This device takes part in model updates"
    switch.send_keys(" ")
    opened.find_element("css selector", "form.settings button").click()
    assert sees(opened, "takes_part = false")
    assert Policy.load(client / "policy.toml") == Policy(takes_part=False)


def test_what_is_not_for_me_goes_and_comes_back(opened: Any, client: Path) -> None:
    size(opened, 390)
    first = opened.find_element("css selector", ".card .title").text
    opened.find_element("css selector", ".card button.plain").click()
    assert sees(opened, f"{first} is not shown any more")
    assert first not in [each.text for each in opened.find_elements("css selector", ".title")]
    opened.find_element("css selector", ".notice button").click()
    assert sees(opened, "Undone:")
    assert opened.find_element("css selector", ".card .title").text == first
    with Store(client / "history.db") as store:
        assert store.dislikes("me") == []
    size(opened, WIDE)


def test_details_are_one_click_away(opened: Any) -> None:
    opened.get(opened.current_url + "policy")
    assert not opened.find_element("name", "most_epsilon").is_displayed()
    opened.find_element("tag name", "summary").click()
    assert opened.find_element("name", "most_epsilon").is_displayed()


def test_forgetting_waits_for_the_tick(opened: Any, client: Path) -> None:
    opened.get(opened.current_url + "forget")
    forget = opened.find_element("css selector", "button.danger")
    forget.click()
    assert sees(opened, "Forget my history?")  # the browser requires the checkbox
    assert mine(client) == sorted(ME)
    opened.find_element("name", "confirm").click()
    forget.click()
    assert sees(opened, "Forgotten: 4 interactions.")
    assert mine(client) == []


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_nothing_and_nothing_is_cut_off(opened: Any, axe: str, colours: str) -> None:
    look_at_all(opened, axe, colours, PATHS)


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_the_same_of_the_operators_page(
    browser: Any, axe: str, home: OperatorFolder, colours: str
) -> None:
    begin(home, "monday")
    begin(home, "sunday", stage="stopped", reason="2 of 3 clients came and 3 are needed")
    (home.run("sunday") / "result.json").write_text("{}")
    with serving(OperatorSite(home)) as server:
        browser.get(server.guard.address)
        look_at_all(browser, axe, colours, OPERATOR_PATHS)


def look_at_all(driver: Any, axe: str, colours: str, paths: tuple[str, ...]) -> None:
    room = driver.current_url
    emulate(driver, colours)
    driver.get_log("browser")
    for width in (WIDE, NARROW):
        size(driver, width)
        for path in paths:
            driver.get(room + path)
            assert findings(driver, axe) == [], (path, width)
            wide = driver.execute_script("return document.documentElement.scrollWidth")
            assert wide <= width, (path, width)
    said = [line["message"] for line in driver.get_log("browser")]
    assert [line for line in said if "404" not in line] == []


def test_the_operators_page_keeps_up_by_itself(browser: Any, home: OperatorFolder) -> None:
    begin(home, "monday")
    with serving(OperatorSite(home)) as server:
        browser.get(server.guard.address)
        assert sees(browser, "Sum 2 of 3 (noisy-head-gram): input for 15 s")
        begin(home, "monday", sum_number=3, step="unmask", waited=0)
        assert sees(browser, "Sum 3 of 3 (noisy-head-gram): unmask")
        browser.get(browser.current_url + "run?name=monday")
        browser.find_element("name", "confirm").click()
        browser.find_element("css selector", "button.danger").click()
        assert sees(browser, "The server ends the run monday within seconds.")
        assert (home.run("monday") / "stop").exists()


# --- another site ---------------------------------------------------------------------------------


class Evil(BaseHTTPRequestHandler):
    """Website that knows everything about the page except its secrets."""

    target = ""

    def do_GET(self) -> None:
        body = (
            "<!doctype html><title>evil</title>"
            f'<form method="post" action="{self.target}add"><input name="item" value="stolen">'
            '<input name="csrf" value=""></form>'
            f'<iframe src="{self.target}"></iframe>'
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: Any) -> None:
        """Log nothing."""


@pytest.fixture
def evil(page: PageServer) -> Iterator[str]:
    """Serve the attacker's site on another port of this machine.

    To a browser it is the same *site*, so SameSite does not protect.
    """
    Evil.target = f"http://127.0.0.1:{page.server_port}{page.guard.room}"
    with ThreadingHTTPServer(("127.0.0.1", 0), Evil) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


STEAL = """
const done = arguments[1];
fetch(arguments[0], {credentials: "include"}).then(r => r.text()).then(done, e => done("refused"));
"""


def test_another_site_neither_reads_nor_changes_nor_frames_the_page(
    opened: Any, evil: str, page: PageServer, client: Path
) -> None:
    opened.get(evil)
    assert opened.execute_async_script(STEAL, Evil.target + "export.csv") == "refused"
    opened.switch_to.frame(opened.find_element("tag name", "iframe"))
    assert "Because of" not in opened.page_source
    opened.switch_to.default_content()
    opened.execute_script("document.forms[0].submit()")
    assert sees(opened, "A request from another site.")
    assert mine(client) == sorted(ME)
    opened.get(f"http://127.0.0.1:{page.server_port}{page.guard.room}")
    assert sees(opened, "Because of")  # the person is still signed in


def test_with_the_guards_off_the_foreign_form_gets_through(
    opened: Any, evil: str, client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for guard in ("check_site", "check_origin", "check_form"):
        monkeypatch.setattr(Guard, guard, lambda *_: None)
    opened.get(evil)
    opened.execute_script("document.forms[0].submit()")
    assert sees(opened, "Added to your history: stolen.")
    assert "stolen" in mine(client)


def test_a_name_that_was_made_to_point_here_is_refused(
    page: PageServer, client: Path, tmp_path: Path
) -> None:
    """Simulate DNS rebinding with the browser's own host table, even with a leaked token."""
    rebound = "--host-resolver-rules=MAP evil.example 127.0.0.1"
    with chromium(tmp_path, rebound) as driver:
        address = page.guard.address.replace("127.0.0.1", "evil.example")
        driver.get(address)
        assert sees(driver, "This page answers under its own address only.")
        driver.get(address.partition("/?")[0] + page.guard.room)
        assert sees(driver, "This page answers under its own address only.")
    assert Visitor(page).enter().look().status == 200
