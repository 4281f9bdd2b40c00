"""The page in a real browser: no error, no overflow, links alive, readable by everyone."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gacprof.cliffmap import CliffMap
from gacprof.reporting.page import write_page
from gacprof.reporting.verdict import Contents

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt install chromium"),
]

MEASURED = Path(__file__).parents[2] / "reports/cpu-example"
WIDTHS = (390, 800, 1440)
SCHEMES = ("light", "dark")
MOST_BYTES = 1_000_000


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    """The demo's page from its own files, and one of a map with much in it."""
    folder = tmp_path_factory.mktemp("pages")
    parts = {
        "diagnosis": "diagnosis", "plan": "plan", "verification": "verify", "bench": "bench"
    }  # fmt: skip
    read = {
        part: json.loads((MEASURED / f"{name}.json").read_text()) for part, name in parts.items()
    }
    cpu, a100 = (CliffMap.load(name) for name in ("cpu-example", "a100-published"))
    demo = Contents("A model", cpu, **read)
    return {
        "demo": write_page(demo, folder / "demo"),
        "survey": write_page(Contents("A survey", a100), folder / "survey"),
    }


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright import sync_api  # the extra 'browser'

    with sync_api.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(params=["demo", "survey"])
def opened(request, pages, browser) -> Iterator[tuple[Any, list[str]]]:
    """(page, what it complained of, requests that left the machine among it)."""
    context = browser.new_context()
    page, complaints = context.new_page(), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda r: r.url.startswith(("file:", "data:")) or complaints.append(r.url))
    page.goto(pages[request.param].as_uri())
    yield page, complaints
    context.close()


def test_it_loads_alone_and_small_without_a_complaint(opened):
    page, complaints = opened
    page.mouse.wheel(0, 20_000)
    assert complaints == []
    assert len(page.content().encode()) < MOST_BYTES


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_overflows(opened, width):
    page, _ = opened
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # Nor is any text of a figure cut off by its frame.
    cut = page.evaluate(
        """[...document.querySelectorAll("figure svg")].flatMap((svg) => {
             const frame = svg.getBoundingClientRect();
             return [...svg.querySelectorAll("text")].filter((text) => {
               const box = text.getBoundingClientRect();
               return box.left < frame.left - 1 || box.right > frame.right + 1 ||
                 box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
             }).map((text) => text.textContent);
           })"""
    )
    assert cut == []


def test_links_lead_somewhere(opened):
    page, _ = opened
    targets = page.eval_on_selector_all("a[href]", "all => all.map((a) => a.getAttribute('href'))")
    assert len(targets) > 2 and all(target.startswith("#") for target in targets)
    assert all(page.locator(f"[id='{target[1:]}']").count() == 1 for target in targets)


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1440)])
def test_axe_finds_nothing(opened, scheme, width):
    page, _ = opened
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    assert [(v["id"], [n["html"][:120] for n in v["nodes"]][:3]) for v in found] == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_ink_stands_out_in_figures_too(opened, scheme):
    """axe-core looks at no text inside a picture: 4.5 : 1 is what WCAG 2 asks of it."""
    page, _ = opened
    page.emulate_media(color_scheme=scheme)
    colours = page.evaluate(
        """[...new Set([...document.querySelectorAll("figure svg text")].map(
             (text) => getComputedStyle(text).fill))]
           .concat(getComputedStyle(document.body).backgroundColor)"""
    )
    *inks, paper = (luminance(colour) for colour in colours)
    assert inks
    for ink in inks:
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= 4.5


def luminance(colour: str) -> float:
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(share * c for share, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_a_curve_answers_for_a_size_that_is_pointed_at_or_asked_for(pages, browser):
    page = browser.new_page()
    page.goto(pages["demo"].as_uri())
    figure = page.locator("figure[data-axis=K]").first
    shown = figure.locator("output")
    points = json.loads(figure.locator("script").text_content())
    words = {point[0]: point[3] for point in points}

    figure.locator("input").fill("107")
    assert shown.text_content() == f"K = 107: {words[107]}"
    assert "µs" in words[107] and "misaligned" in words[107]
    figure.locator("input").fill("117")
    assert shown.text_content().startswith("K = 117 was not measured; the nearest: K = 116: ")

    # Every point lies where the plot has a mark, and pointing at it tells of it.
    marks = figure.locator("svg use").evaluate_all(
        "all => all.map((use) => [Number(use.getAttribute('x')), Number(use.getAttribute('y'))])"
    )
    for _, x, y, _ in points:
        assert min(abs(x - a) + abs(y - b) for a, b in marks) < 0.3
    d, x, y, _ = points[len(points) // 2]
    figure.locator("svg").scroll_into_view_if_needed()
    at = figure.locator("svg").evaluate(
        "(svg, [x, y]) => { const p = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());"
        " return [p.x, p.y]; }",
        [x, y],
    )
    page.mouse.move(*at)
    assert shown.text_content() == f"K = {d}: {words[d]}"
    assert figure.locator("input").input_value() == str(d)
    assert figure.locator("circle.ring").count() == 1


def test_without_scripts_and_on_paper_the_figures_stand(pages, browser):
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(pages["demo"].as_uri())
    assert (
        page.locator("figure svg[role=img][aria-label]").count() == page.locator("figure").count()
    )
    assert not page.locator(".ask").first.is_visible()
    assert page.get_by_text("latency [µs]").count() > 0
