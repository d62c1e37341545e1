"""The chat page in a real browser without a screen: turns, stop, reload, widths and themes."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions, Keys
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.server.rig import Server, serving

KEY = "a-key-of-ours"
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
SECONDS = 30
SHOTS = os.environ.get("PAGE_SHOTS")
"""Where pictures go, for whoever wants to look at them."""
CODE = "def f(x):  # adds\n    return x + 1"

needs_browser = pytest.mark.skipif(
    BROWSER is None or DRIVER is None, reason="needs chromium and chromedriver"
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(
        *("--kv-tokens", "8192", "--speculation", "3"), environ={"DESKSIDE_API_KEY": KEY}
    ) as running:
        running.client.headers["x-api-key"] = KEY
        yield running


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = BROWSER or ""
    profile = tmp_path_factory.mktemp("profile")
    for word in (
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--no-first-run", "--no-proxy-server", "--window-size=1000,800"),
        f"--user-data-dir={profile}",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = Chrome(options=options, service=Service(DRIVER))
    yield made
    made.quit()


class Page:
    """The page of a service in a browser."""

    def __init__(self, browser: Chrome, server: Server) -> None:
        self.browser, self.server = browser, server

    def open(self) -> "Page":
        self.browser.set_window_size(1000, 800)
        self.browser.get(self.server.url + "/")
        self.browser.execute_script("sessionStorage.clear()")
        self.browser.get_log("browser")  # what came without a key
        self.browser.get(self.server.url + "/")
        key = self.wait(lambda: self.one("#key") if self.one("#key").is_displayed() else None)
        key.send_keys(KEY, Keys.TAB)
        self.wait(lambda: self.text("#model") == "deskside-mini")
        self.browser.get_log("browser")
        temperature = self.one("#temperature")
        temperature.send_keys("0", Keys.TAB)
        self.one("#settings-open").click()
        return self

    def one(self, selector: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return str(self.one(selector).get_attribute("textContent"))

    def wait(self, condition: Callable[[], Any]) -> Any:
        return WebDriverWait(self.browser, SECONDS, 0.05).until(lambda _: condition())

    def think(self, choice: str) -> None:
        if not self.one("#settings").is_displayed():
            self.one("#settings-open").click()
        self.one(f"#think option[value={choice}]").click()

    def say(self, text: str) -> None:
        """Send a text as it is: keys would send it at its first line."""
        script = "arguments[0].value = arguments[1]"
        self.browser.execute_script(script, self.one("#text"), text)
        self.one("#text").send_keys(Keys.ENTER)

    def done(self) -> None:
        self.wait(lambda: self.one("#send").is_displayed())

    def shot(self, name: str) -> None:
        if SHOTS:
            self.browser.save_screenshot(str(Path(SHOTS) / f"{name}.png"))

    def check(self) -> None:
        """Hold that nothing was complained of and no other host was asked."""
        assert self.browser.get_log("browser") == []
        script = "return performance.getEntries().map(e => e.name)"
        names = [name for name in self.browser.execute_script(script) if "://" in name]
        assert names
        assert all(name.startswith(self.server.url) for name in names)


@pytest.fixture
def page(browser: Chrome, server: Server) -> Iterator[Page]:
    opened = Page(browser, server).open()
    yield opened
    server.wait_idle()


def test_the_files_need_no_key_and_trust_no_other_host(server: Server) -> None:
    for path in ("/", "/page/app.js", "/page/render.js", "/page/style.css"):
        answer = server.get(path, headers={"x-api-key": "", "host": "localhost"})
        assert answer.status_code == 200, path
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in answer.text.lower(), "no address of any host"
        assert KEY not in answer.text
    assert server.get("/page/other", headers={"x-api-key": "wrong"}).status_code == 401
    assert server.get("/page/../routes.py").status_code == 404
    assert server.get("/", headers={"host": "rebound.example"}).status_code == 403


@needs_browser
def test_a_streamed_turn(page: Page) -> None:
    page.think("enabled")
    page.say(f"why</think>so it **is**:\n\n```python\n{CODE}\n```\nand <b>`x`</b>")
    page.done()
    user, model = page.all("article")
    assert user.get_attribute("class") == "user"
    thought = model.find_element(By.CSS_SELECTOR, "details")
    assert thought.get_attribute("open") is None
    assert thought.find_element(By.CSS_SELECTOR, "div").get_attribute("textContent") == "why"
    code = model.find_element(By.CSS_SELECTOR, "pre code")
    assert code.get_attribute("textContent") == CODE
    kinds = [span.get_attribute("class") for span in code.find_elements(By.TAG_NAME, "span")]
    assert kinds == ["word", "comment", "word", "number"]
    assert model.find_element(By.TAG_NAME, "strong").text == "is"
    assert not model.find_elements(By.TAG_NAME, "b"), "markup of the model stays text"
    status = page.text("#status")
    assert "tokens" in status
    assert "% of drafts accepted" in status
    page.shot("turn")
    page.check()


@needs_browser
def test_stop_edit_again_and_reload(page: Page, server: Server) -> None:
    free = server.wait_idle()["free_pages"]
    page.say("slowly " + "on " * 600)
    page.wait(lambda: len(page.text("article.assistant .body")) > 20)
    assert page.one("#talk").get_attribute("aria-busy") == "true"
    page.one("#stop").click()
    page.done()
    assert page.text("#status") == "stopped"
    assert server.wait_idle()["free_pages"] == free
    part = page.text("article.assistant .body")
    assert 20 < len(part) < 1800
    page.browser.refresh()
    page.wait(lambda: page.text("#model") == "deskside-mini")
    assert page.text("article.assistant .body") == part
    page.one("article.user .tools button:nth-child(2)").click()
    assert page.all("article") == []
    assert page.one("#text").get_attribute("value").startswith("slowly on on")
    page.say("short")
    page.done()
    assert page.text("article.assistant .body") == "short"
    page.one("article.assistant .tools button:nth-child(2)").click()
    page.done()
    assert [a.get_attribute("class") for a in page.all("article")] == ["user", "assistant"]
    page.one("#reset").click()
    assert page.all("article") == []
    page.check()


@needs_browser
def test_the_rate_is_live(page: Page) -> None:
    page.say("slowly " + "on " * 600)
    page.wait(lambda: "tok/s" in page.text("#status"))
    assert page.one("#talk").get_attribute("aria-busy") == "true", "while the answer comes"
    assert "% of drafts accepted" in page.text("#status")
    first = page.text("#status")
    page.wait(lambda: page.text("#status") != first)
    page.one("#stop").click()
    page.done()
    page.check()


@needs_browser
@pytest.mark.parametrize("by", ["clipboard", "selection"])
def test_a_message_is_copied(page: Page, by: str) -> None:
    """Also where the page comes by plain HTTP from another machine, which has no clipboard."""
    if by == "selection":
        hidden = "Object.defineProperty(navigator, 'clipboard', {value: undefined})"
        page.browser.execute_script(hidden)
    page.browser.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardSanitizedWrite"]}
    )
    said = f"{by}:\n**so**\n```\n{CODE}\n```"
    page.say(said)
    page.done()
    page.one("article.assistant .tools button:nth-child(1)").click()
    page.wait(lambda: page.text("#status") == "copied")
    page.one("#text").send_keys(Keys.CONTROL, "v")
    assert page.one("#text").get_attribute("value") == said
    assert page.one("#text").get_attribute("value") != page.text("article.assistant .body")
    page.check()


@needs_browser
def test_escape_stops(page: Page) -> None:
    page.think("enabled")
    page.say("slowly " + "on " * 600)
    page.wait(lambda: page.all("article.assistant details"))
    page.one("#text").send_keys(Keys.ESCAPE)
    page.done()
    assert page.text("#status") == "stopped"
    page.check()


@needs_browser
def test_an_error_is_told(page: Page) -> None:
    page.say("x " * 9000)
    page.done()
    assert "error: " in page.text("#status")
    assert "too long" in page.text("#status")
    assert [a.get_attribute("class") for a in page.all("article")] == ["user"]


@needs_browser
def test_narrow_and_in_both_themes(page: Page) -> None:
    page.say(f"{'long ' * 60}\n\n```\n{'wide_' * 60}\n```")
    page.done()
    grounds = set()
    for width in (360, 1000):
        page.browser.set_window_size(width, 740)
        page.browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 740, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        for _ in range(2):
            page.one("#theme").click()
            script = "return [document.documentElement.scrollWidth, innerWidth]"
            inside, outside = page.browser.execute_script(script)
            assert inside <= outside == width
            for selector in ("#send", "#reset", "#theme", "#text"):
                box = page.one(selector).rect
                assert box["x"] >= 0
                assert box["x"] + box["width"] <= width
            ground = "return getComputedStyle(document.body).backgroundColor"
            grounds.add(page.browser.execute_script(ground))
            page.shot(f"{width}-{len(grounds)}-{_}")
    assert len(grounds) == 2
    page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    page.check()


@needs_browser
def test_keyboard_and_names(page: Page) -> None:
    """Every control has a name that a screen reader says, and the keyboard reaches it."""
    page.say("hello")
    page.done()
    for control in page.all("button, input, select, textarea"):
        if control.is_displayed():
            assert control.accessible_name, control.get_attribute("outerHTML")
    assert page.one("#talk").aria_role == "log"
    assert page.browser.switch_to.active_element.get_attribute("id") == "text"
    reached = set()
    for _ in range(12):
        page.browser.switch_to.active_element.send_keys(Keys.TAB)
        reached.add(page.browser.switch_to.active_element.accessible_name)
    assert {"Send", "Settings", "New", "Copy this message", "Answer again"} <= reached
    page.check()
