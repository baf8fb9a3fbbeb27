"""The pages of the repository: links lead somewhere, pictures follow the code, options are complete."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from pyspark_checkpoint import checkpoint, restore
from pyspark_checkpoint.sink import table_options
from pyspark_checkpoint.store.options import KNOWN
from tools.draw_pictures import IMAGES, PACKAGES, draw_all, read_layers

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    page
    for folder in ("*.md", "docs/**/*.md", "benchmarks/*.md", "tests/*.md")
    for page in ROOT.glob(folder)
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for target in LINK.findall(page.read_text("utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(linked), f"{page.name} links to {target}"


def test_the_readme_is_short_and_its_numbers_are_those_of_the_results() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 150
    table = text.split("## Five numbers")[1].split("\n\n")[1]
    numbers = re.findall(r"\| ([\d.]+(?:x| s))[^|]* \|$", table, re.MULTILINE)
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text("utf-8")
    assert len(numbers) == 5
    assert [number for number in numbers if number not in results] == []


def test_the_results_have_fewer_than_200_lines() -> None:
    assert len((ROOT / "benchmarks" / "RESULTS.md").read_text("utf-8").splitlines()) < 200


def test_pictures_are_what_the_script_draws_and_show_every_package() -> None:
    """``python tools/draw_pictures.py`` draws them again."""
    drawn = draw_all()
    assert {name: (IMAGES / name).read_text("utf-8") for name in drawn} == drawn
    names = {name for layer in read_layers() for name in layer}
    assert names == set(PACKAGES)
    package = ROOT / "pyspark_checkpoint"
    assert {path.name for path in package.iterdir() if (path / "__init__.py").exists()} <= names


def test_architecture_names_every_package_and_only_files_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    for name in PACKAGES:
        assert f"`{name}" in text, name
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.py)`", text)
    assert named
    for file in named:
        assert (ROOT / file).exists() or (ROOT / "pyspark_checkpoint" / file).exists(), file


def test_design_draws_the_layers_that_the_linter_has() -> None:
    """A line a layer, the highest first."""
    drawing = (ROOT / "docs" / "design.md").read_text("utf-8").split("## Packages")[1].split("```")[1]
    layers = [
        set(re.split(r"  {2,}", line.strip())[0].split(" | ")) for line in drawing.strip().splitlines()
    ]
    assert layers == [set(layer) - {"__main__"} for layer in read_layers() if layer != ["__main__"]]


def test_the_page_of_options_has_every_option_and_every_argument() -> None:
    """Options of stores and of ckpt-sink; arguments of the two functions that most programs call."""
    text = (ROOT / "docs" / "options.md").read_text("utf-8")
    sink = (*table_options._SHARED, *table_options._WRITE, *table_options._READ)
    assert [name for name in (*KNOWN, *sink) if f"`{name}`" not in text] == []
    for function, heading in ((checkpoint, "## Listener"), (restore, "## Restore")):
        section = text.split(f"{heading}\n")[1].split("\n## ")[0]
        arguments = inspect.signature(function).parameters.values()
        named = [one.name for one in arguments if one.kind is not one.VAR_KEYWORD]
        assert [name for name in named if f"`{name}`" not in section] == [], heading


def test_no_text_has_a_word_that_only_we_would_understand() -> None:
    """Repartition, diverged, lineage, live set, duplicate: the field's own words, wherever one reads."""
    ours = re.compile(
        r"split(?:ting|s)? anew|went another way|\ball the time\b|\bdoubled\b|what it names? cannot be told"
        r"|\bthe living\b|\bin trouble\b|\bcourse of (?:a|the) table\b",
        re.IGNORECASE,
    )
    folders = ("pyspark_checkpoint", "tests", "docs", "examples", "tools", "benchmarks", "jvm-shim/src")
    files = [
        file
        for folder in folders
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".py", ".md", ".java") and file != Path(__file__)
    ]
    assert len(files) > 700
    found = {
        str(file.relative_to(ROOT)): ours.findall(file.read_text("utf-8")) for file in (*files, *PAGES)
    }
    assert {name: words for name, words in found.items() if words} == {}


def test_no_page_has_a_path_of_a_machine() -> None:
    """Examples name made-up places; a home directory is somebody's."""
    for page in PAGES:
        assert not re.search(r"/home/\w+|/Users/\w+|/root/", page.read_text("utf-8")), page.name
