"""How the page looks: on a phone and on a wide screen, by day and by night."""

from __future__ import annotations

CSS = """
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#16191d;--soft:#5b6470;--line:#dfe3e8;
--total:#b9d2f5;--new:#2563c9;--took:#0f8a7e;--puts:#7a4fd0;--gets:#c9b5f0;--wait:#8a94a1;--gap:#d9480f;
--save:#1a7f37;--bad:#c62828;--band:#edf1f6;--claim:#9a7b00;--back:#b35c00}
@media(prefers-color-scheme:dark){:root{--bg:#101317;--card:#181c22;--ink:#e8ebef;--soft:#9aa5b1;--line:#2b323b;
--total:#2c4a75;--new:#6ea8ff;--took:#3fc1b2;--puts:#b394f5;--gets:#4d3d75;--wait:#74808d;--gap:#ff8a4c;
--save:#4cc36a;--bad:#ff6b6b;--band:#20262e;--claim:#d9b44a;--back:#f0a35e}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.45 system-ui,-apple-system,"Segoe UI",
Roboto,"DejaVu Sans",sans-serif;overflow-wrap:anywhere}
main{max-width:1080px;margin:0 auto;padding:20px 16px 48px}
h1{font-size:1.5rem;margin:0 0 2px;line-height:1.2}
h2{font-size:1.05rem;margin:28px 0 8px}
p{margin:0 0 8px}
.soft{color:var(--soft);font-size:.875rem}
.card,.tile,.chart{background:var(--card);border:1px solid var(--line);border-radius:10px}
.tiles{display:grid;grid-template-columns:repeat(2,1fr);gap:10px;margin:16px 0}
.tile{padding:10px 12px}
.tile b{display:block;font-size:1.3rem;font-weight:600;line-height:1.25;font-variant-numeric:tabular-nums}
.tile.warn b{color:var(--gap)}
.tile.bad b{color:var(--bad)}
.charts{display:grid;grid-template-columns:1fr;gap:10px}
.chart{margin:0;padding:12px}
.wide{grid-column:1/-1}
@media(min-width:760px){.charts{grid-template-columns:1fr 1fr}.tiles{grid-template-columns:repeat(5,1fr)}}
figcaption{display:flex;flex-wrap:wrap;gap:2px 12px;align-items:baseline;margin-bottom:8px}
figcaption b{font-weight:600}
.key::before{content:"";display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px;
background:var(--c)}
.plot{position:relative;height:150px;border-bottom:1px solid var(--line)}
.strip .plot{height:96px}
.plot svg{position:absolute;inset:0;width:100%;height:100%;display:block;overflow:visible}
.top{position:absolute;top:0;left:0;font-size:.75rem;color:var(--soft);background:var(--card);
padding:0 4px 0 0;z-index:1;border-radius:3px}
.lane{position:absolute;top:2px;font-size:.75rem;color:var(--soft);padding-left:5px;white-space:nowrap;
overflow:hidden;text-overflow:ellipsis}
.axis{display:flex;justify-content:space-between;font-size:.75rem;color:var(--soft);margin-top:4px;gap:8px}
.axis span:nth-child(2):not(:last-child){text-align:center}
.axis span:last-child{text-align:right}
.scroll{overflow-x:auto}
.card{padding:4px 0}
table{border-collapse:collapse;width:100%;font-size:.875rem}
th,td{text-align:left;padding:6px 12px;border-bottom:1px solid var(--line);white-space:nowrap}
tr:last-child td{border-bottom:0}
th{font-weight:600;color:var(--soft)}
.n{text-align:right;font-variant-numeric:tabular-nums}
.tag{display:inline-block;border-radius:999px;padding:0 8px;font-size:.75rem;border:1px solid currentColor}
.tag.save{color:var(--save)}
.tag.bad{color:var(--bad)}
.tag.rollback{color:var(--back)}
.tag.claim,.tag.replacement{color:var(--claim)}
@media(max-width:640px){
.stack thead{display:none}
.stack tr{display:grid;grid-template-columns:1fr 1fr;padding:8px 12px;border-bottom:1px solid var(--line)}
.stack tr:last-child{border-bottom:0}
.stack td{border:0;padding:1px 0;white-space:normal;text-align:left}
.stack td:empty{display:none}
.stack td::before{content:attr(data-h) " ";color:var(--soft);font-size:.75rem}
.stack td:first-child{font-weight:600}
}
article+article{margin-top:40px;border-top:1px solid var(--line);padding-top:28px}
""".strip()
