"""The pages in a real browser: no error, nothing beside the window, and no finding of axe-core.

The browser is SPECMATRIX_BROWSER, or Playwright's own, or a Chromium of the system. SPECMATRIX_AXE names axe-core's
axe.min.js, which npm's package axe-core holds. tests/README.md has the commands.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from specmatrix.reports.compare.compare import compare
from specmatrix.reports.render.comparison import write_comparison
from specmatrix.reports.render.run import view, write_run
from specmatrix.reports.store import load

WIDTHS = (360, 800, 1440)
SYSTEM = ("chromium", "chromium-browser", "google-chrome", "chrome")
AXE = os.environ.get("SPECMATRIX_AXE", "")
PAGES = ("run", "comparison")

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(find_spec("playwright") is None, reason="playwright is not installed"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        found = os.environ.get("SPECMATRIX_BROWSER") or (own if Path(own).exists() else None)
        found = found or next(filter(None, map(shutil.which, SYSTEM)), None)
        if found is None:
            pytest.skip(f"there is neither a browser of Playwright ({own}) nor one of {', '.join(SYSTEM)}")
        launched = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def pages(tmp_path, specimen, write_report):
    """A page of each kind, by name; the run is red."""
    for name, stride in (("base", False), ("head", True)):
        write_report(tmp_path / name, specimen(stride=stride), repository="https://host.example/a/b")
    base, head = load(tmp_path / "base"), load(tmp_path / "head")
    write_run(head)
    assert view(head).red
    write_comparison(compare(base, head), tmp_path / "comparison")
    found = {"run": tmp_path / "head" / "report.html", "comparison": next((tmp_path / "comparison").glob("*.html"))}
    assert {*found} == {*PAGES}
    return found


@pytest.fixture
def opened(browser, pages):
    """Opens a page of a kind; closes it, and fails if it logged an error or asked the network for anything."""
    contexts, complaints = [], []

    def open_(name: str, width: int = 1440, scheme: str = "light") -> Any:  # noqa: ANN401 - Playwright's page
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        page.on("request", lambda asked: None if asked.url.startswith("file:") else complaints.append(asked.url))
        page.goto(pages[name].as_uri())
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_and_is_accessible(opened, name, width, scheme):
    page = opened(name, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    light = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)")
    assert (sum(light) > 600) == (scheme == "light")
    if AXE:
        page.evaluate(Path(AXE).read_text(encoding="utf-8"))
        found = page.evaluate("async () => (await axe.run()).violations")
        assert [(one["id"], one["nodes"][0]["target"], one["nodes"][0]["failureSummary"]) for one in found] == []


def test_a_phone_shows_whole_rows_of_tables_of_few_columns(opened):
    page = opened("run", 360)
    beside = "box => [box.innerText.split(/\\s/)[0], box.scrollWidth - box.clientWidth]"
    found = dict(page.evaluate(f"[...document.querySelectorAll('.scroll')].map({beside})"))
    assert (found["combinations"], found["field"], found["what"]) == (0, 0, 0)


def test_axe_core_was_there():
    if not AXE:
        pytest.skip("SPECMATRIX_AXE names no axe.min.js, so accessibility was not checked")


def test_a_header_sorts_by_keyboard(opened):
    page = opened("run")
    button = page.locator("th[aria-sort] button").first
    button.focus()
    page.keyboard.press("Enter")
    first = page.locator("th[aria-sort]").first.get_attribute("aria-sort")
    page.keyboard.press("Enter")
    assert {first, page.locator("th[aria-sort]").first.get_attribute("aria-sort")} == {"ascending", "descending"}


def test_a_permalink_opens_its_cell(opened):
    page = opened("run")
    link = page.locator("table.verdicts a").first
    cell = link.inner_text()
    link.click()
    assert page.url.endswith(f"#cell={cell}")
    assert cell in page.locator("tr.details").inner_text(timeout=5000)


def test_a_search_hides_rows(opened):
    page = opened("run")
    rows = page.locator("#cells tbody tr:visible")
    before = rows.count()
    page.locator("input[type=search]").first.fill("eagle3")
    page.wait_for_timeout(300)
    assert 0 < rows.count() < before
