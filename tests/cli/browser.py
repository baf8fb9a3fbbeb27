"""A headless Chromium that opens a page in frames of several widths and says what it sees."""

from __future__ import annotations

import html
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
_DARK = "--blink-settings=preferredColorScheme=0"
_MEASURE = """
const seen = {};
for (const frame of document.querySelectorAll('iframe')) {
  const page = frame.contentDocument, view = frame.contentWindow, root = page.documentElement;
  const shown = [...page.querySelectorAll('main *')].filter(e => e.getClientRects().length);
  const own = e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  const texts = shown.filter(e => own(e) && !e.closest('svg'));
  seen[frame.dataset.width] = {
    overflow: root.scrollWidth - root.clientWidth,
    outside: texts.filter(e => !e.closest('.scroll')
      && e.getBoundingClientRect().right > root.clientWidth + 1).length,
    smallest_font: Math.min(...texts.map(e => parseFloat(view.getComputedStyle(e).fontSize))),
    background: view.getComputedStyle(page.body).backgroundColor,
    ink: view.getComputedStyle(page.body).color,
    charts: [...page.querySelectorAll('figure svg')].map(e => {
      const box = e.getBoundingClientRect(); return [box.width, box.height]; }),
    ticks: page.querySelectorAll('.strip line').length,
    columns: view.getComputedStyle(page.querySelector('.tiles')).gridTemplateColumns.split(' ').length,
    heads: [...page.querySelectorAll('h1,h2')].map(e => e.textContent),
    rows: page.querySelectorAll('tbody tr').length,
    text: page.body.innerText,
    scripts: page.scripts.length,
    resources: view.performance.getEntriesByType('resource').map(e => e.name),
  };
}
document.getElementById('seen').textContent = JSON.stringify(seen);
"""


@dataclass(frozen=True)
class Browser:
    """A browser and a place for its files."""

    path: str
    directory: Path

    def look(self, page: str, *widths: int, dark: bool = False) -> dict[int, dict[str, Any]]:
        """What a page looks like at each width."""
        frames = "".join(
            f'<iframe data-width="{width}" style="width:{width}px;height:900px;border:0" '
            f'srcdoc="{html.escape(page)}"></iframe>'
            for width in widths
        )
        script = f"<script>onload=()=>{{{_MEASURE}}}</script>"
        wrapper = self.directory / "wrapper.html"
        wrapper.write_text(f'<!doctype html>{frames}<pre id="seen"></pre>{script}', encoding="utf-8")
        flags = (*_FLAGS, *((_DARK,) if dark else ()), f"--user-data-dir={self.directory / 'profile'}")
        ran = subprocess.run(
            [self.path, *flags, "--window-size=1600,1000", "--dump-dom", wrapper.as_uri()],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        found = re.search(r'<pre id="seen">(.*?)</pre>', ran.stdout, re.DOTALL)
        assert found and found[1], ran.stdout[-2000:]
        return {int(width): seen for width, seen in json.loads(html.unescape(found[1])).items()}
