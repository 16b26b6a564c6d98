"""The page in headless Chromium: BASE is the server's address, CHROMIUM a program in place of playwright's own."""

import os

from playwright.sync_api import expect, sync_playwright

BASE = os.environ["BASE"]

with sync_playwright() as play:
    browser = play.chromium.launch(executable_path=os.environ.get("CHROMIUM"), args=["--no-sandbox"])
    for size in [{"width": 1200, "height": 800}, {"width": 360, "height": 640}]:
        page = browser.new_page(viewport=size)
        wrong, foreign = [], []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
        page.on("request", lambda request: foreign.append(request.url) if not request.url.startswith((BASE, "data:")) else None)
        page.goto(BASE)
        expect(page.locator("#model")).to_have_text("smollm2")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it does not fit"

        # By keyboard alone: the message has the focus.
        page.keyboard.type("What is the capital of France?")
        page.keyboard.press("Enter")
        answer = page.locator(".turn.assistant .text")
        expect(answer).not_to_be_empty(timeout=60_000)
        expect(page.locator(".actions .note")).to_contain_text("tokens/s", timeout=60_000)

        # Stop in the middle, then anew.
        page.click("#toggle")
        page.fill("#max_tokens", "1500")
        page.fill("#temperature", "0")
        page.keyboard.press("Tab")
        page.click("#toggle")
        page.fill("#input", "Write a very long story about a ship.")
        page.click("#send")
        expect(page.locator(".turn.assistant").nth(1).locator(".text")).not_to_be_empty(timeout=60_000)
        page.keyboard.press("Escape")
        expect(page.locator(".actions .note").nth(1)).to_contain_text("stopped")
        page.click("#toggle")
        page.fill("#max_tokens", "5")
        page.click("#toggle")
        page.click(".regenerate")
        expect(page.locator(".actions .note").nth(1)).to_contain_text("ended by the limit", timeout=60_000)
        expect(page.locator(".turn.assistant")).to_have_count(2)

        # What a model says is text.
        assert page.evaluate("(() => { const e = document.createElement('div'); show(e, '<img src=x onerror=a>'); return e.children.length; })()") == 0
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
        # The browser itself logs the status of the refused request.
        assert not [text for text in wrong if "400" not in text], wrong
        assert not foreign, foreign
        page.close()
        print("ok", size)
    browser.close()
