"""The page of ``ckpt report``, by its text and in a real browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_checkpoint.cli.report_page import Chapter, page
from pyspark_checkpoint.format.manifest import ConnectorCheckpoint
from pyspark_checkpoint.history.overview import Entry, Overview
from tests.cli.browser import Browser
from tests.cli.kit import Shell, make_long_history

NOW_MS = 1_700_008_000_000


@pytest.fixture(scope="module")
def overview(tmp_path_factory: pytest.TempPathFactory) -> Overview:
    return make_long_history(tmp_path_factory.mktemp("long")).overview()


@pytest.fixture(scope="module")
def long_page(overview: Overview) -> str:
    return page([Chapter("orders", "s3://bucket/orders", overview)], NOW_MS)


def test_the_page_loads_nothing_and_runs_nothing(long_page: str) -> None:
    """No address to load from, no script, no import; a policy in the page forbids both."""
    assert not re.search(r"<script|<link|<img|@import|url\(|src=|href=", long_page)
    assert "default-src 'none'" in long_page


def test_what_a_store_says_cannot_become_markup() -> None:
    """A savepoint, a query or a run with a strange name is text, wherever it stands."""
    evil = "<script>alert(1)</script>\"'&"
    entry = Entry(1, savepoints=(evil,), problem=None, epoch=0, timestamp_ms=1, generation=1, run_id=evil)
    damaged = Entry(2, problem=evil)
    made = page([Chapter(evil, evil, Overview(entries=(entry, damaged)))], NOW_MS)
    assert "<script" not in made
    assert made.count("&lt;script&gt;") >= 5


def test_a_new_history_is_a_page_too() -> None:
    """Nothing was committed yet: the page says that."""
    assert "no checkpoint yet" in page([Chapter("new", "file:///new", Overview())], NOW_MS)


def test_the_browser_shows_everything_at_every_width(long_page: str, browser: Browser) -> None:
    """On a phone, a tablet and a desk nothing sticks out, nothing is tiny, every chart is there."""
    seen = browser.look(long_page, 360, 820, 1280)
    for width, found in seen.items():
        assert found["overflow"] == 0, width
        assert found["outside"] == 0, width
        assert found["smallest_font"] >= 12
        assert len(found["charts"]) == 5
        assert all(chart[0] > 200 and chart[1] >= 90 for chart in found["charts"])
        assert found["scripts"] == 0
        assert found["resources"] == []
        assert found["heads"] == ["orders", "Savepoints", "Gaps", "Generations", "Checkpoints"]
    assert [found["columns"] for found in seen.values()] == [2, 5, 5]


def test_the_browser_shows_what_the_history_is(
    long_page: str, overview: Overview, browser: Browser
) -> None:
    """Every checkpoint has its tick and its row; savepoints, gaps and generations are named."""
    found = browser.look(long_page, 1280)[1280]
    assert found["ticks"] == len(overview.entries)
    text = found["text"]
    for name in ("before-upgrade", "weekly", "black-friday"):
        assert name in text
    assert "nothing was committed" in text
    assert "1 checkpoint removed" in text
    assert "4 checkpoints removed" in text
    for run in ("run-a", "run-b", "run-c"):
        assert run in text
    assert f"#{overview.entries[-1].number}" in text


def test_the_page_follows_the_light(long_page: str, browser: Browser) -> None:
    """By day dark ink on light ground, by night the other way round."""
    day = browser.look(long_page, 390)[390]
    night = browser.look(long_page, 390, dark=True)[390]
    assert _brightness(day["background"]) > 200 > 60 > _brightness(day["ink"])
    assert _brightness(night["ink"]) > 200 > 60 > _brightness(night["background"])


def test_a_damaged_checkpoint_is_on_the_page(overview: Overview) -> None:
    """One that cannot be read is counted, named and said to be damaged; the rest is there."""
    entries = list(overview.entries)
    entries[5] = Entry(entries[5].number, problem="is torn")
    made = page([Chapter("orders", "file:///x", replace(overview, entries=tuple(entries)))], NOW_MS)
    assert "<h2>Damaged</h2>" in made
    assert "is torn" in made


def test_the_command_writes_the_page_of_all_queries(ckpt: Shell, parent: Path, tmp_path: Path) -> None:
    """Below a parent each query has its part of the page."""
    out = tmp_path / "report.html"
    done = ckpt("report", parent, "-o", out)
    assert done.status == 0, done.err
    assert "8 checkpoints" in done.out
    written = out.read_text()
    assert "<h1>orders</h1>" in written
    assert "<h1>clicks</h1>" in written


def test_the_page_shows_where_the_sources_stand(ckpt: Shell, parent: Path, tmp_path: Path) -> None:
    """Each offset of each source at the newest checkpoint, in JSON too."""
    out = tmp_path / "report.html"
    done = ckpt("report", parent, "--query", "orders", "-o", out, "--json")
    assert done.status == 0, done.err
    (history,) = done.json["histories"]
    (source,) = history["sources"].values()
    assert source["offsets"] == {"offset": '{"topic":{"0":2}}'}
    written = out.read_text()
    assert "<h2>Sources</h2>" in written
    assert "At checkpoint #5: the next batch reads from here. Watermark" in written
    assert '<td data-h="offset">topic.0</td><td class="n" data-h="at">2</td>' in written


def test_many_partitions_do_not_flood_the_page(overview: Overview) -> None:
    """The first ones are shown, the others counted; a strange topic is text."""
    offsets = {"<b>": {str(number): number for number in range(1000)}}
    sources = {"kafka": ConnectorCheckpoint({"offset": json.dumps(offsets)})}
    made = page([Chapter("orders", "file:///x", overview, sources)], NOW_MS)
    assert "and 800 more" in made
    assert "<b>.0" not in made
    assert "&lt;b&gt;.0" in made


def test_a_page_that_cannot_be_written_is_told_with_the_cure(
    ckpt: Shell, table: str, tmp_path: Path
) -> None:
    """No traceback for a wrong path."""
    done = ckpt("report", table, "-o", tmp_path / "no" / "such" / "r.html")
    assert done.status == 2
    assert "hint: give another path" in done.err


def _brightness(colour: str) -> float:
    red, green, blue = (int(part) for part in re.findall(r"\d+", colour)[:3])
    return 0.3 * red + 0.59 * green + 0.11 * blue
