"""The page of a study, as text and in a real browser."""

import importlib.util
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from interlock.study.report.page import page_of
from interlock.study.report.plots import plots_of
from interlock.study.report.words import printable
from tests.study.report.conftest import HOSTILE

spec = importlib.util.spec_from_file_location("browser", Path(__file__).parent / "browser.py")
devtools = importlib.util.module_from_spec(spec)
spec.loader.exec_module(devtools)
STUDIES = ("small", "many", "hostile", "alone", "unsuccessful", "refused")


@pytest.fixture(scope="module")
def pages(request, tmp_path_factory):
    """Study -> its page's file, made when first asked for; with figures for some."""
    made, root = {}, tmp_path_factory.mktemp("pages")

    def page(name):
        if name not in made:
            results = request.getfixturevalue(name)
            plots = plots_of(results)[:1]
            if name in ("small", "many"):
                plots = plots_of(request.getfixturevalue(f"{name}_with_runs"))
            made[name] = root / f"{name}.html"
            made[name].write_text(page_of(results, plots), encoding="utf-8")
        return made[name]

    pytest.importorskip("matplotlib")
    return page


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    path = devtools.installed()
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(devtools.NAMES)} is installed")
    opened = devtools.Browser(path, tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


class Reader(HTMLParser):
    """Which elements a page has; asserts that they are closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.texts = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag not in ("meta", "input", "link", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def contrasts_of(results):
    return [*results.findings.effects, *results.findings.contrasts]


def test_every_study_makes_a_well_formed_page_that_names_no_address(any_study):
    text = page_of(any_study, (), "no figures in this test")
    seen = Reader(text).seen
    assert not {"img", "link", "iframe", "object"} & {tag for tag, _ in seen}
    assert [tag for tag, _ in seen].count("script") == 1
    assert not re.search(r"https?://", text.replace("http-equiv", ""))
    for tag, attributes in seen:
        assert not any(name.startswith("on") for name in attributes), tag
        assert tag != "th" or attributes["scope"] in ("row", "col")


def test_verdicts_and_reasons_are_those_of_the_findings_word_for_word(small):
    text = page_of(small, ())
    shown = re.findall(r'<td><span class="verdict ?[a-z]*">([^<]*)</span> <small>([^<]*)', text)
    assert shown == [(c.verdict, c.reason) for c in contrasts_of(small)]


def test_what_a_reader_must_know_stands_before_all_else(small):
    text = page_of(small, ())
    places = [text.index(name) for name in (small.findings.notes[0], "In short", "Cells</h2>")]
    assert places == sorted(places)


def test_refusals_failures_command_and_manifest_are_on_the_page(small, hostile):
    text = page_of(small, ())
    assert small.refusals[0].problems[0] in text
    assert "interlock study conf/experiment/synthetic.yaml --out &#x27;a b&#x27;" in text
    assert "no machine: synthetic numbers" in text
    assert page_of(hostile, ()).count("broke: &lt;script&gt;") == 8


def test_a_page_without_figures_says_why(small):
    assert "pip install" in page_of(small, (), "figures need matplotlib: pip install x")


def test_a_level_named_like_markup_appears_as_text_alone(hostile):
    text = page_of(hostile, plots_of(hostile)[:2] if importlib.util.find_spec("matplotlib") else ())
    assert text.count("<script") == 1
    assert not any(bad in text for bad in ("\x1b", "\0", "\u202e"))


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("width", [360, 1280])
def test_a_page_opens_offline_and_never_scrolls_sideways(pages, browser, name, width):
    path = pages(name)
    browser.open(path, width)
    assert browser.requests() == [path.as_uri()]
    assert not browser.problems()
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value("document.title") != "owned"
    if width == 360:
        sizes = browser.value(
            "[...document.querySelectorAll('.panel svg text')].map(t => {"
            "const m = t.getScreenCTM(); return parseFloat(getComputedStyle(t).fontSize) *"
            " Math.hypot(m.a, m.b)})"
        )
        assert all(size >= 9 for size in sizes)


def test_the_page_of_100_cells_is_small(pages):
    """How soon a browser has it is measured by benchmarks/study_page.py."""
    assert pages("many").stat().st_size < 5e6


CONTRAST = """(() => {
  const linear = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = c => {
    const [r, g, b] = c.match(/[\\d.]+/g).map(Number).map(linear);
    return .2126 * r + .7152 * g + .0722 * b; };
  const under = e => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if (!c.startsWith('rgba(0, 0, 0, 0')) return c; }
    return 'rgb(255,255,255)'; };
  const every = 'h1,h2,h3,p,li,a,td,th,small,caption,span,button,output,pre';
  return [...document.querySelectorAll(every)]
    .filter(e => e.textContent.trim() && e.offsetParent).map(e => {
      const colours = [getComputedStyle(e).color, under(e)];
      const [a, b] = colours.map(light).sort((x, y) => y - x);
      return [(a + .05) / (b + .05), e.tagName + '.' + e.className]; })
    .sort((x, y) => x[0] - y[0])[0]; })()"""


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_has_enough_contrast_in_light_and_dark(pages, browser, dark):
    browser.open(pages("small"), dark=dark)
    worst, where = browser.value(CONTRAST)
    assert worst >= 4.5, where
    paper = browser.value("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") is not dark


def test_a_reader_of_the_screen_finds_headings_names_of_figures_and_labels(pages, browser):
    browser.open(pages("small"))
    levels = browser.value("[...document.querySelectorAll('h1,h2,h3')].map(h => +h.tagName[1])")
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    alts = browser.value("[...document.querySelectorAll('[role=img]')].map(e => e.ariaLabel)")
    assert len(alts) >= 10
    assert all(len(alt) > 20 for alt in alts)
    assert browser.value(
        "[...document.querySelectorAll('input,select')].every(e => e.labels.length)"
    )
    assert browser.value("document.querySelectorAll('table').length") == browser.value(
        "document.querySelectorAll('table > caption').length"
    )
    assert browser.value(
        "[...document.querySelectorAll('nav a')].every(a => document.querySelector(a.hash))"
    )


def test_tables_are_sorted_by_number_and_filtered_by_words_and_metric(pages, browser, many):
    browser.open(pages("many"))
    grid = "document.querySelector('section[aria-labelledby=cells] .grid')"
    head = f"{grid}.querySelectorAll('thead th')[1]"
    values = f"[...{grid}.querySelectorAll('tbody tr')].map(r => +r.cells[1].dataset.v)"
    for _ in range(2):
        browser.value(f"{head}.querySelector('button').click()")
        order = browser.value(values)
        up = browser.value(f"{head}.ariaSort") == "ascending"
        assert order == sorted(order, reverse=not up)
        assert len(order) == 100
    shown = f"[...{grid}.querySelectorAll('tbody tr:not([hidden]) th')].map(h => h.textContent)"
    browser.value(
        f"(() => {{const i = {grid}.querySelector('input'); i.value = 'RADIX eagle';"
        "i.dispatchEvent(new Event('input'))})()"
    )
    found = browser.value(shown)
    assert len(found) == 4
    assert all("cache=radix" in name and "spec=eagle" in name for name in found)
    assert browser.value(f"{grid}.querySelector('output').textContent") == "4 of 100 rows"
    grid = "document.querySelector('section[aria-labelledby=effects] .grid')"
    count = f"{grid}.querySelectorAll('tbody tr:not([hidden])').length"
    assert browser.value(count) == len(many.findings.effects) / len(many.study.metrics)
    browser.value(
        f"(() => {{const s = {grid}.querySelector('select'); s.value = '';"
        "s.dispatchEvent(new Event('change'))})()"
    )
    assert browser.value(count) == len(many.findings.effects)


def test_hostile_names_are_read_as_they_are(pages, browser, hostile):
    browser.open(pages("hostile"))
    names = browser.value(
        "[...document.querySelectorAll('section[aria-labelledby=contrasts] tbody th')]"
        ".map(h => h.textContent)"
    )
    assert names == [printable(c.what) for c in hostile.findings.contrasts]


def test_a_noise_floor_of_too_few_pairs_is_said_to_be_one_on_the_page(few):
    text = page_of(few, [])
    noise = text[text.index('id="noise"') :]
    assert noise.count(">too few pairs<") == len(few.findings.noise)
    assert "nan" not in noise[: noise.index("</section>")].lower()


def test_the_study_file_stands_on_the_page_as_text(small):
    written = f"# {HOSTILE[0]}\nname: '</pre></details>'\nbase: [a=b]\n"
    text = page_of(replace(small, manifest={"study_file": written}), [])
    assert "<summary>Study file</summary>" in text
    assert "base: [a=b]" in text
    assert "name: &#x27;&lt;/pre&gt;&lt;/details&gt;&#x27;" in text
    assert HOSTILE[0] not in text
