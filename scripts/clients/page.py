"""The page in headless Chromium: BASE is the server's address, SMELT the program, CHROMIUM a browser in place of
playwright's own. Servers of its own are for what the first one must not suffer: a key, and an end in the middle of an answer."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request

from playwright.sync_api import expect, sync_playwright

BASE, SMELT = os.environ["BASE"], os.environ["SMELT"]
DESKTOP, PHONE = {"width": 1200, "height": 800}, {"width": 360, "height": 640}


@contextlib.contextmanager
def opened(browser, base, size, allowed=(), **options):
    """A page of its own that asks nobody but its server, and whose console has no errors but those allowed."""
    context = browser.new_context(viewport=size, **options)
    page = context.new_page()
    wrong, foreign, dialogs = [], [], []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
    page.on("request", lambda request: foreign.append(request.url) if not request.url.startswith((base, "data:")) else None)
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.goto(base)
    yield page
    # The browser itself logs the status of a refused request.
    assert not [text for text in wrong if not any(part in text for part in allowed)], wrong
    assert not foreign and not dialogs, (foreign, dialogs)
    context.close()


def ask(page, text):
    page.fill("#input", text)
    page.click("#send")


def answered(page, number, note):
    expect(page.locator(".turn.assistant").nth(number).locator(".actions .note")).to_contain_text(note, timeout=60_000)


def talk(browser, size):
    with opened(browser, BASE, size, allowed=["400"]) as page:
        expect(page.locator("#model")).to_have_text("smollm2")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it does not fit"
        # Small models can go on for ever.
        page.evaluate("localStorage.setItem('smelt.max_tokens', '40')")
        page.reload()
        page.keyboard.type("What is the capital of France?")
        page.keyboard.press("Enter")
        expect(page.locator(".turn.assistant .text")).not_to_be_empty(timeout=60_000)
        answered(page, 0, "tokens/s")

        # Stop in the middle, then anew.
        page.click("#toggle")
        page.fill("#max_tokens", "1500")
        page.fill("#temperature", "0")
        page.keyboard.press("Tab")
        page.click("#toggle")
        ask(page, "Write a very long story about a ship.")
        expect(page.locator(".turn.assistant").nth(1).locator(".text")).not_to_be_empty(timeout=60_000)
        page.keyboard.press("Escape")
        answered(page, 1, "stopped")
        page.click("#toggle")
        page.fill("#max_tokens", "5")
        page.click("#toggle")
        page.click(".regenerate")
        answered(page, 1, "ended by the limit")
        expect(page.locator(".turn.assistant")).to_have_count(2)

        # Settings stay, and colours follow them.
        page.click("#toggle")
        page.select_option("#theme", "dark")
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.select_option("#theme", "light")
        assert dark != page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.reload()
        page.click("#toggle")
        assert page.input_value("#max_tokens") == "5" and page.input_value("#theme") == "light"

        # Errors are shown, and the question is not lost.
        page.fill("#temperature", "9")
        page.click("#toggle")
        page.fill("#input", "Hello")
        page.keyboard.press("Enter")
        expect(page.locator("#status")).to_contain_text("temperature")
        assert page.input_value("#input") == "Hello"


def by_keyboard(browser):
    """No mouse: settings, a question, the answer once more, a new conversation."""
    with opened(browser, BASE, DESKTOP) as page:
        expect(page.locator("#model")).to_have_text("smollm2")

        def walk_to(selector):
            for _ in range(40):
                if page.evaluate("selector => document.activeElement.matches(selector)", selector):
                    return
                page.keyboard.press("Shift+Tab")
            raise AssertionError(f"{selector} cannot be reached")

        walk_to("#toggle")
        page.keyboard.press("Enter")
        walk_to("#key")  # round the end of the page
        walk_to("#max_tokens")
        page.keyboard.type("4")
        walk_to("#toggle")
        page.keyboard.press("Enter")
        expect(page.locator("#settings")).to_be_hidden()
        walk_to("#input")
        page.keyboard.type("Count.")
        page.keyboard.press("Enter")
        answered(page, 0, "4 tokens")
        first = page.locator(".turn.assistant .text").inner_text()
        walk_to(".regenerate")
        page.keyboard.press("Enter")
        expect(page.locator(".turn.assistant .actions")).to_have_count(1, timeout=60_000)
        assert first and page.evaluate("getComputedStyle(document.activeElement).outlineStyle") is not None
        page.keyboard.press("Alt+n")
        expect(page.locator(".turn")).to_have_count(0)


def colours_of_the_system(browser):
    found = []
    for scheme in ["light", "dark"]:
        with opened(browser, BASE, DESKTOP, color_scheme=scheme) as page:
            found.append(page.evaluate("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"))
    assert found[0][0] == found[1][0].replace("22, 24, 27", "255, 255, 255") and found[0] != found[1], found


def hostile_answers(browser):
    """What a model says is text, whatever it looks like."""
    text = "<img src=x onerror=alert(1)><script>alert(2)</script>\n```html\n<iframe src='https://example.com'></iframe>\n```\n<b>end</b>"
    events = [{"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]} for piece in text.split(" ")]
    for event in events[:-1]:
        event["choices"][0]["delta"]["content"] += " "
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    with opened(browser, BASE, DESKTOP) as page:
        page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))
        ask(page, "<i>Hello</i>")
        answered(page, 0, "tokens")
        shown = page.locator(".turn.assistant .text")
        assert "<img src=x onerror=alert(1)><script>alert(2)</script>" in shown.inner_text(), shown.inner_text()
        assert "<iframe src='https://example.com'></iframe>" in page.locator(".turn.assistant pre").inner_text()
        assert page.locator(".turn img, .turn script, .turn iframe, .turn b, .turn i").count() == 0


def serve(port):
    command = [SMELT, "serve", "smollm2", "--port", str(port), "-c", "2048", "--cache-tokens", "4096"]
    server = subprocess.Popen(command, env={**os.environ, "SMELT_API_KEY": "secret"}, stderr=subprocess.DEVNULL)
    for _ in range(600):
        assert server.poll() is None, "the server ended"
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health")
            return server
        except OSError:
            time.sleep(0.2)
    raise AssertionError("no server")


def a_key_and_a_server_that_dies(browser):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = serve(port)
    try:
        with opened(browser, f"http://127.0.0.1:{port}", PHONE, allowed=["401", "ERR_"]) as page:
            expect(page.locator("#status")).to_contain_text("API key")
            page.click("#toggle")
            page.fill("#key", "wrong")
            page.keyboard.press("Tab")
            expect(page.locator("#status")).to_contain_text("Incorrect API key")
            page.fill("#key", "secret")
            page.keyboard.press("Tab")
            expect(page.locator("#model")).to_have_text("smollm2")
            page.click("#toggle")
            ask(page, "Write a very long story about a ship.")
            expect(page.locator(".turn.assistant .text")).not_to_be_empty(timeout=60_000)
            server.send_signal(signal.SIGKILL)
            server.wait()
            # What had come stays, and it is told that there is no more of it.
            expect(page.locator("#status.error")).not_to_be_empty(timeout=60_000)
            expect(page.locator(".turn.assistant .text")).not_to_be_empty()
            expect(page.locator("#stop")).to_be_hidden()
            # Nobody is there: the question goes back.
            ask(page, "Hello?")
            expect(page.locator("#status.error")).not_to_be_empty()
            expect(page.locator("#input")).to_have_value("Hello?")
            server = serve(port)
            page.click("#toggle")
            page.fill("#max_tokens", "8")
            page.click("#toggle")
            page.click("#send")
            answered(page, 1, "tokens")
    finally:
        server.kill()


with sync_playwright() as play:
    browser = play.chromium.launch(executable_path=os.environ.get("CHROMIUM"), args=["--no-sandbox"])
    for size in [DESKTOP, PHONE]:
        talk(browser, size)
        print("ok talk", size, flush=True)
    for check in [by_keyboard, colours_of_the_system, hostile_answers, a_key_and_a_server_that_dies]:
        check(browser)
        print("ok", check.__name__, flush=True)
    browser.close()
