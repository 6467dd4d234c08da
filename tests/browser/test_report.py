"""The HTML report as a person uses it, in Chromium."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers import run_builder as builder
from tests.helpers.chromium import until
from verifier.reports import html

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.conftest import Open

TITLES = "[...document.querySelectorAll('.p:not([hidden])')].map((p) => p.querySelector('.id').textContent)"


def shown(page: Page) -> list[str]:
    """Ids of the prompts that are in the list, in its order."""
    found: list[str] = page.evaluate(TITLES)
    return found


def status(page: Page) -> str:
    return page.text_content("#status") or ""


def settle(page: Page, expression: str) -> Any:
    return until(page, expression)


def test_what_differs_is_open_and_what_is_exact_is_folded(sample: Path, page_of: Open) -> None:
    page = page_of(sample)
    assert page.title() == "LOSSY · standard · lossless"
    assert page.locator(".p[open]").count() == 6
    assert page.locator(".p.c-exact[open]").count() == 0
    assert page.locator("#p1 del").first.is_visible()
    assert status(page) == "12 of 12 prompts"


def test_prompts_are_filtered_by_class_category_language_and_cause(sample: Path, page_of: Open) -> None:
    page = page_of(sample)
    page.locator("[name=outcome][value=exact]").uncheck()
    settle(page, "document.getElementById('status').textContent === '6 of 12 prompts'")
    page.select_option("#by-category", label="chat")
    settle(page, "document.getElementById('status').textContent === '3 of 12 prompts'")
    assert shown(page) == ["timeout", "zh-explain", "ar-explain"]
    page.select_option("#by-language", label="zh")
    settle(page, "document.getElementById('status').textContent === '1 of 12 prompts'")
    page.select_option("#by-cause", label="wrong-token")
    settle(page, "!document.getElementById('nothing').hidden")
    page.click("#nothing button")
    settle(page, "document.getElementById('status').textContent === '12 of 12 prompts'")


def test_prompts_and_answers_are_searched(sample: Path, page_of: Open) -> None:
    page = page_of(sample)
    page.fill("#search", "FIBONACCI")
    settle(page, "document.getElementById('status').textContent === '1 of 12 prompts'")
    assert shown(page) == ["code-fib"]
    page.fill("#search", "大模型")
    settle(page, f"{TITLES}.join() === 'zh-explain'")
    page.fill("#search", r"number \d is")
    settle(page, "document.getElementById('status').textContent === '0 of 12 prompts'")
    page.check("#regex")
    settle(page, "document.getElementById('status').textContent === '6 of 12 prompts'")
    page.fill("#search", "(")
    settle(page, "document.getElementById('problem').textContent")
    assert page.get_attribute("#search", "aria-invalid") == "true"


def test_prompts_are_sorted(sample: Path, page_of: Open) -> None:
    page = page_of(sample)
    page.select_option("#sort", "x")
    assert shown(page)[0] == "story"
    page.select_option("#sort", "n")
    assert shown(page)[0] == "code-fib"
    page.select_option("#sort", "")
    assert shown(page)[0] == "timeout"


def test_keys_go_from_difference_to_difference(sample: Path, page_of: Open) -> None:
    page = page_of(sample)
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.evaluate("scrollTo(0, 0)")
    visited = []
    total = page.evaluate("document.querySelectorAll('[data-d]').length")
    for _ in range(6):
        page.keyboard.press("n")
        visited.append(page.evaluate("document.activeElement.closest('.p').id + document.activeElement.dataset.d"))
        settle(page, "document.activeElement.getBoundingClientRect().top > 0")
    assert visited[0] == "p41"
    assert len(set(visited)) == len(visited)
    page.keyboard.press("p")
    assert page.evaluate("document.activeElement.closest('.p').id + document.activeElement.dataset.d") == visited[-2]
    assert total >= len(visited)
    box = page.evaluate("document.activeElement.getBoundingClientRect().toJSON()")
    assert 0 < box["top"] < 900


def test_keys_do_nothing_while_one_types_and_can_be_switched_off(sample: Path, page_of: Open) -> None:
    page = page_of(sample)
    page.keyboard.press("/")
    page.keyboard.type("dn")
    assert page.input_value("#search") == "dn"
    assert page.get_attribute("html", "data-theme") is None
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    page.uncheck("#shortcuts")
    page.keyboard.press("d")
    assert page.get_attribute("html", "data-theme") is None


def test_inline_and_side_by_side_hold_the_same_text(sample: Path, page_of: Open) -> None:
    page = page_of(sample)
    text = "[...document.querySelectorAll('#p1 .cell')].map((cell) => cell.textContent)"
    before = page.evaluate(text)
    page.keyboard.press("i")
    both = page.locator("#p1 .cell.both")
    settle(page, "document.querySelector('#p1 .cell.both')")
    assert "number is 55`55`." in (both.text_content() or "")
    assert page.get_attribute("[data-do=inline]", "aria-pressed") == "true"
    page.keyboard.press("n")
    assert page.evaluate("document.activeElement.checkVisibility()")
    page.keyboard.press("i")
    settle(page, "!document.querySelector('#p1 .cell.both')")
    assert page.evaluate(text) == before


def test_white_space_is_shown_and_hidden_again(sample: Path, page_of: Open) -> None:
    page = page_of(sample)
    before = page.text_content("#p1 .diff")
    page.keyboard.press("w")
    settle(page, "document.querySelector('#p1 .diff').textContent.includes('↵')")
    page.keyboard.press("i")
    settle(page, "document.querySelector('#p1 .both')?.textContent.includes('·')")
    page.keyboard.press("i")
    page.keyboard.press("w")
    settle(page, "!document.querySelector('#p1 .diff').textContent.includes('↵')")
    assert page.text_content("#p1 .diff") == before


def test_the_theme_follows_the_system_until_it_is_chosen(sample: Path, page_of: Open) -> None:
    page = page_of(sample, color_scheme="dark")
    color = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(color)
    page.keyboard.press("d")
    light = page.evaluate(color)
    assert dark != light
    page.reload()
    assert page.evaluate(color) == light


def test_a_token_tells_what_the_reference_thinks_of_it(named: Path, page_of: Open) -> None:
    page = page_of(named)
    page.click("#p1 [data-do=tokens]")
    settle(page, "document.querySelector('#p1 .chips')")
    page.click("#p1 .changed-ref")
    told = page.text_content("#p1 .token") or ""
    assert 'text " 55"' in told
    assert "bytes 20 35 35" in told
    assert "logprob on the reference -0.6200" in told
    assert "gap 0.1250 nats" in told
    page.click("#p1 .changed-spec")
    assert "rank 2" in (page.text_content("#p1 .token") or "")
    page.click("#p1 [data-do=tokens]")
    assert page.locator("#p1 .tokens").is_hidden()


def test_raw_records_are_shown_when_they_are_unfolded(sample: Path, page_of: Open) -> None:
    page = page_of(sample)
    page.click("#p1 .raw summary")
    settle(page, "document.querySelector('#p1 .raw pre').textContent.includes('\"type\": \"comparison\"')")


@pytest.mark.parametrize("what", ["curl", "minimal"])
def test_commands_are_copied(sample: Path, page_of: Open, what: str) -> None:
    page = page_of(sample, permissions=["clipboard-read", "clipboard-write"])
    page.click(f"#p1 [data-copy={what}]")
    settle(page, f"document.querySelector('#p1 [data-copy={what}]').textContent === 'copied'")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert "curl -sS http://127.0.0.1:30000/generate" in copied


def test_a_link_opens_its_prompt(sample: Path, page_of: Open) -> None:
    page = page_of(sample, anchor="#p12")
    settle(page, "document.getElementById('p12').open")
    settle(page, "document.getElementById('p12').getBoundingClientRect().top < innerHeight")


def test_a_click_in_the_strip_goes_to_the_difference(sample: Path, page_of: Open) -> None:
    page = page_of(sample)
    strip = page.locator("#p2 .strip")
    width = page.evaluate("document.querySelector('#p2 .strip').getBoundingClientRect().width")
    strip.click(position={"x": width - 4, "y": 30})
    assert page.evaluate("document.activeElement.closest('.p').id + document.activeElement.dataset.d") == "p22"


def test_without_javascript_everything_can_be_read(sample: Path, page_of: Open) -> None:
    page = page_of(sample, java_script_enabled=False)
    assert page.locator("#p1 del", has_text="55").first.is_visible()
    assert page.locator("#p1 .evidence table").is_visible()
    page.click("#p12 summary")
    assert page.locator("#p12 .text").last.is_visible()
    assert page.locator("#toolbar").is_hidden()
    assert page.locator("button:visible").count() == 0


@pytest.mark.parametrize("width", [360, 768, 1280])
@pytest.mark.parametrize("page_name", ["sample", "hostile"])
def test_nothing_sticks_out_of_the_window(
    page_of: Open, request: pytest.FixtureRequest, width: int, page_name: str
) -> None:
    page = page_of(request.getfixturevalue(page_name), viewport={"width": width, "height": 800})
    for place in range(0, page.evaluate("document.body.scrollHeight"), 2000):
        page.evaluate(f"scrollTo(0, {place})")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_hostile_text_runs_nothing(hostile: Path, page_of: Open) -> None:
    page = page_of(hostile)
    settle(page, "document.documentElement.dataset.ready")
    page.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
    for key in ("i", "w", "n", "n", "w"):
        page.keyboard.press(key)
    page.evaluate("for (const button of document.querySelectorAll('[data-do=tokens]')) button.click()")
    page.fill("#search", "pwned")
    settle(page, "document.getElementById('status').textContent === '3 of 4 prompts'")
    for option in page.locator("#by-category option").all():
        page.select_option("#by-category", index=int(option.evaluate("option => option.index")))
        settle(page, "/ of 4 prompts/.test(document.getElementById('status').textContent)")
    assert page.evaluate("window.pwned") is None
    assert page.evaluate("document.querySelectorAll('img, iframe, object, [onload], [onerror]').length") == 0
    assert page.evaluate("getComputedStyle(document.body).display") != "none"
    settle(page, "[...document.querySelectorAll('.raw pre')].some((pre) => pre.textContent.includes('\\\\u202e'))")
    assert page.evaluate("/[\\u202a-\\u202e\\u2066-\\u2069\\u001b]/.test(document.body.innerText)") is False


def test_packed_prompts_are_put_in_place_when_they_are_needed(
    page_of: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "INLINE_BYTES", 0)
    with builder.sample(tmp_path / "run.jsonl") as run:
        html.write_html(run, tmp_path / "report.html")
    page = page_of(tmp_path / "report.html")
    page.locator("#p1").scroll_into_view_if_needed()
    settle(page, "document.querySelector('#p1 del')")
    page.click("#p12 > summary")
    settle(page, "document.querySelector('#p12 .text')")
    page.fill("#search", "tenth Fibonacci")
    settle(page, "document.getElementById('status').textContent === '1 of 12 prompts'")
    page.fill("#search", "number 5 is the same")
    settle(page, "document.getElementById('status').textContent === '1 of 12 prompts'")


def test_right_to_left_text_runs_from_the_right(sample: Path, page_of: Open) -> None:
    page = page_of(sample)
    page.locator("#p3").scroll_into_view_if_needed()
    left = """(() => {
      const cell = document.querySelector("#p3 .cell"), range = document.createRange();
      range.selectNodeContents(cell);
      const gap = cell.getBoundingClientRect().right - range.getBoundingClientRect().right;
      return [gap, getComputedStyle(cell).direction];
    })()"""
    gap, direction = page.evaluate(left)
    assert direction == "rtl"
    assert gap < 20


def test_it_prints_without_its_tools(sample: Path, page_of: Open) -> None:
    page = page_of(sample)
    page.emulate_media(media="print")
    assert page.locator("#toolbar").is_hidden()
    assert page.locator("#p1 .diff").is_visible()
    assert page.pdf().startswith(b"%PDF")


def test_everything_can_be_reached_by_keyboard(sample: Path, page_of: Open) -> None:
    page = page_of(sample)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "prompts"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.localName") == "summary"
    was = page.evaluate("document.activeElement.parentElement.open")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.parentElement.open") is not was
    page.focus("[data-do=theme]")
    page.keyboard.press("Space")
    assert page.get_attribute("html", "data-theme") == "dark"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("page_name", ["sample", "named"])
def test_no_accessibility_rule_is_broken(
    page_of: Open, request: pytest.FixtureRequest, axe: str, scheme: str, width: int, page_name: str
) -> None:
    path = request.getfixturevalue(page_name)
    page = page_of(path, color_scheme=scheme, viewport={"width": width, "height": 900})
    page.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
    page.evaluate("for (const button of document.querySelectorAll('[data-do=tokens]')) button.click()")
    page.click("[data-do=keys]")
    # What is skipped while it is out of view has no colour to be looked at.
    height = page.evaluate("document.body.scrollHeight")
    page.set_viewport_size({"width": width, "height": min(height, 16_000)})
    page.evaluate(axe)
    found = page.evaluate(
        """async () => (await axe.run({ resultTypes: ["violations"] })).violations
          .map((rule) => `${rule.id}: ${rule.nodes.map((node) => node.html.slice(0, 150)).slice(0, 5).join(" | ")}`)"""
    )
    assert found == []
