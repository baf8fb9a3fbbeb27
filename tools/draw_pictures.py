"""Draw the pictures of README.md and docs/architecture.md as SVG, without any library.

    python tools/draw_pictures.py

``docs/images/batch.svg`` shows what happens to a batch. ``docs/images/packages.svg`` shows every package
in the layer that ``setup.cfg`` gives it. Colours follow the reader's light or dark theme.
"""

from __future__ import annotations

import configparser
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
WIDTH = 960

STYLE = """\
<style>
text { font-family: system-ui, "Segoe UI", Roboto, sans-serif; fill: #1f2328; font-size: 13px }
.head { font-weight: 600; font-size: 15px } .name { font-weight: 600 }
.small { fill: #59636e; font-size: 12px }
.card { fill: #ffffff } .lane { fill: #f6f8fa } .box { fill: #ffffff; stroke: #818b98 }
.commit { fill: #dafbe1; stroke: #1a7f37; stroke-width: 2 } .arrow { stroke: #59636e; fill: none }
.tip { fill: #59636e }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .small { fill: #9198a1 }
  .card { fill: #0d1117 } .lane { fill: #151b23 } .box { fill: #212830; stroke: #656c76 }
  .commit { fill: #12351f; stroke: #3fb950 } .arrow { stroke: #9198a1 } .tip { fill: #9198a1 }
}
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<path class="tip" d="M0,0 L8,4 L0,8 z"/></marker></defs>"""

PACKAGES = {
    "__main__": "python -m pyspark_checkpoint",
    "cli": "the command ckpt: one file a command",
    "plugin": "the driver plugin: settings, side process, automatic restore",
    "compat": "names of the first designs",
    "session": "checkpoint(spark, url): joins listener and restorer",
    "sink": 'format("ckpt-sink"): rows, state, offsets',
    "listener": "checkpoints of any query, after each batch",
    "restorer": "a checkpoint location from a checkpoint",
    "testing": "fakes and models for tests, yours too",
    "spark": "adapter: all private calls of PySpark and py4j",
    "inputs": "do the sources still have what comes after?",
    "outputs": "where a query's rows go; ask it, roll it back",
    "capture": "what sink and listener share: upload, manifest",
    "registry": "the queries below one URL",
    "history": "one linear history: commit, fence, verify, retain, copy",
    "spark_files": "what is in a Spark checkpoint location",
    "crypto": "encryption of artifacts and manifests",
    "table": "rows in Arrow and Parquet, pure",
    "format": "what stored bytes mean, pure",
    "store": "bytes by key: memory, disk, S3, GCS, Azure",
    "clock": "time, ids and chance",
    "jar": "where the jar is",
    "errors": "every error, with code and hint",
}
"""What each package or top module is for. A package that is missing here fails the drawing."""


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def box(
    x: float, y: float, width: float, height: float, lines: list[str], kind: str = "box"
) -> Iterator[str]:
    """A box with a bold first line."""
    yield f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>'
    top = y + height / 2 - 8 * (len(lines) - 1) + 5
    for number, line in enumerate(lines):
        yield text(x + width / 2, top + 16 * number, line, "small" if number else "name", "middle")


def arrow(*points: tuple[float, float]) -> str:
    joined = " ".join(f"{x:g},{y:g}" for x, y in points)
    return f'<polyline class="arrow" points="{joined}" marker-end="url(#tip)"/>'


def picture(height: int, title: str, parts: list[str]) -> str:
    frame = f'<rect class="card" width="{WIDTH}" height="{height}" rx="8"/>'
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    return "\n".join([start, f"<title>{escape(title)}</title>", STYLE, frame, *parts, "</svg>"]) + "\n"


def draw_batch() -> str:
    """Two ways of one batch into the store: with ckpt-sink, and with any other sink."""
    parts: list[str] = []
    lanes = ((44, 96, "Spark"), (148, 96, "this project"), (252, 96, "object store"))
    for top, title in (
        (0, 'format("ckpt-sink"): the commit is inside batch N'),
        (352, "any other sink: the listener, after batch N"),
    ):
        parts.append(text(20, top + 30, title, "head"))
        for y, height, name in lanes:
            parts.append(f'<rect class="lane" x="12" y="{top + y}" width="936" height="{height}" rx="6"/>')
            parts.append(text(24, top + y + 20, name, "small"))

    def place(column: int, lane: int, top: int, lines: list[str], kind: str = "box", span: int = 1) -> None:
        parts.extend(box(112 + 168 * column, top + 60 + 104 * lane, 168 * span - 24, 64, lines, kind))

    def down(column: int, top: int, lane: int) -> None:
        x = 112 + 168 * column + 72
        parts.append(arrow((x, top + 124 + 104 * lane), (x, top + 164 + 104 * lane)))

    def across(column: int, lane: int, top: int) -> None:
        x, y = 112 + 168 * column + 144, top + 92 + 104 * lane
        parts.append(arrow((x, y), (x + 24, y)))

    place(0, 0, 0, ["1  offsets/N", "the plan of the batch"])
    place(1, 0, 0, ["2  tasks run", "rows, state files"])
    place(4, 0, 0, ["5  commits/N", "Spark ends the batch"])
    place(1, 1, 0, ["stage", "one upload a task"])
    place(2, 1, 0, ["3  publish", "create only if absent"])
    place(3, 1, 0, ["4  check and hint", "floor, then _latest"])
    place(1, 2, 0, ["artifacts", "each with its SHA-256"])
    place(2, 2, 0, ["manifest 42", "this is the commit"], "commit")
    place(3, 2, 0, ["_control, _latest", "the hint may be lost"])
    for column, lane in ((1, 0), (1, 1), (2, 1), (3, 1)):
        down(column, 0, lane)
    across(0, 0, 0)
    across(1, 1, 0)
    across(2, 1, 0)
    parts.append(arrow((112 + 168 * 3 + 144, 196), (112 + 168 * 4 + 72, 196), (112 + 168 * 4 + 72, 124)))

    top = 352
    place(0, 0, top, ["1  offsets/N", "the plan of the batch"])
    place(1, 0, top, ["2  tasks run", "rows go to your sink"])
    place(2, 0, top, ["3  commits/N", "Spark ends the batch"])
    place(3, 0, top, ["batch N+1", "does not wait"])
    place(2, 1, top, ["4  capture", "files of batch N"])
    place(3, 1, top, ["5  publish", "create only if absent"])
    place(2, 2, top, ["artifacts", "only what is new"])
    place(3, 2, top, ["manifest 42", "this is the commit"], "commit")
    for column, lane in ((2, 0), (2, 1), (3, 1)):
        down(column, top, lane)
    for column, lane in ((0, 0), (1, 0), (2, 0), (2, 1)):
        across(column, lane, top)
    parts.append(text(112 + 168 * 4, top + 200, "usually durable within", "small"))
    parts.append(text(112 + 168 * 4, top + 216, "a second of commits/N", "small"))
    return picture(712, "What happens to a batch", parts)


def read_layers() -> list[list[str]]:
    """The layers of ``setup.cfg``, the highest first."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = config["importlinter:contract:one-way"]["layers"].split("\n")
    return [[name.strip() for name in line.split("|")] for line in lines if line.strip()]


def draw_packages(layers: list[list[str]]) -> str:
    """A row a layer; a row may import the rows below it, never one above it or beside it."""
    parts = [
        text(
            20,
            30,
            "Each row imports only rows below it. Packages of one row do not import each other.",
            "head",
        )
    ]
    for number, layer in enumerate(layers):
        width = (WIDTH - 24 - 12 * (len(layer) - 1)) / len(layer)
        for place, name in enumerate(layer):
            left, top = 12 + place * (width + 12), 44 + 52 * number
            if len(PACKAGES[name]) > width / 6.3:
                raise ValueError(f"the description of {name} does not fit into its box")
            parts.extend(box(left, top, width, 44, [name, PACKAGES[name]]))
    return picture(52 + 52 * len(layers), "The packages, by layer", parts)


def draw_all() -> dict[str, str]:
    """Every picture by the name of its file."""
    return {"batch.svg": draw_batch(), "packages.svg": draw_packages(read_layers())}


if __name__ == "__main__":
    IMAGES.mkdir(parents=True, exist_ok=True)
    for file_name, content in draw_all().items():
        (IMAGES / file_name).write_text(content, "utf-8")
        print(f"docs/images/{file_name}")
