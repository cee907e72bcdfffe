"""The page of a report: HTML that needs nothing beside itself, light or dark as the reader's machine is, wide or narrow."""

import re
from collections.abc import Sequence
from html import escape

from .charts import DARK, LIGHT, Panel

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --card: #f6f7f9; --ink: #1c2127; --soft: #59636e; --line: #d9dee4; LIGHT }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171b; --card: #1d2126; --ink: #e8eaed; --soft: #a5adb6; --line: #363c44; DARK }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 28px 20px 48px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 40px 0 10px; }
h3 { font-size: 1.05rem; margin: 26px 0 8px; }
p { margin: 0 0 12px; max-width: 75ch; }
.soft, figcaption, .note { color: var(--soft); font-size: 0.9rem; }
.short { background: var(--card); border-left: 4px solid var(--c0); border-radius: 8px; padding: 14px 20px 6px;
  margin-top: 18px; }
.short h2 { margin: 0 0 6px; }
.short ul { margin: 0; padding-left: 20px; }
.short li { margin-bottom: 8px; max-width: 85ch; overflow-wrap: anywhere; }
.legend { display: flex; flex-wrap: wrap; gap: 6px 22px; list-style: none; padding: 10px 0; margin: 14px 0 0;
  background: var(--paper); position: sticky; top: 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
.legend i { display: inline-block; width: 22px; height: 4px; border-radius: 2px; vertical-align: middle; margin-right: 8px; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 18px; margin: 14px 0; }
.panels.three { grid-template-columns: repeat(auto-fit, minmax(min(100%, 330px), 1fr)); }
figure { margin: 0; background: var(--card); border-radius: 8px; padding: 14px; max-width: 571px; }
figure h3 { margin: 0 0 6px; font-size: 1rem; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { margin-top: 8px; }
.scroll { overflow-x: auto; margin: 8px 0 6px; }
table { border-collapse: collapse; font-size: 0.92rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: 6px 0; }
th, td { text-align: right; padding: 6px 14px 6px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
@media (max-width: 600px) {
  main { padding: 18px 14px 36px; }
  figure { padding: 10px; }
  th, td { padding-right: 10px; }
  td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 8em; }
}
@media print { .legend { position: static; } figure { break-inside: avoid; } }
"""


def page(title: str, summary: Sequence[str], names: Sequence[str], sections: Sequence[str], about: str) -> str:
    """The whole document.

    Args:
        title: heading.
        summary: sentences of HTML.
        names: of the configurations, in the order of their colours.
        sections: HTML.
        about: a line under the heading.
    """
    style = STYLE
    for word, colours in (("LIGHT", LIGHT), ("DARK", DARK)):
        style = style.replace(word, " ".join(f"--c{index}: {colour};" for index, colour in enumerate(colours)))
    points = "\n".join(f"<li>{sentence}</li>" for sentence in summary)
    legend = "\n".join(
        f'<li><i style="background: var(--c{index % len(LIGHT)})"></i>{escape(name)}</li>'
        for index, name in enumerate(names)
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
<p class="soft">{about}</p>
<section class="short">
<h2>In short</h2>
<ul>
{points}
</ul>
</section>
<ul class="legend" aria-label="Colours of the pictures">
{legend}
</ul>
{"".join(sections)}
</main>
</body>
</html>
"""


def section(title: str, *parts: str) -> str:
    """A heading and what stands under it; nothing if there is nothing."""
    inside = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{escape(title)}</h2>\n{inside}\n</section>\n" if inside else ""


def note(text: str) -> str:
    """A paragraph of explanation, HTML."""
    return f'<p class="note">{text}</p>' if text else ""


def gallery(panels: Sequence[tuple[Panel, str]]) -> str:
    """Panels beside each other, each with its SVG."""
    figures = []
    for panel, svg in panels:
        described = escape(panel.described, quote=True)
        svg = svg.replace("<svg ", f'<svg role="img" aria-label="{described}" ', 1)
        caption = f"<figcaption>{escape(panel.explained)}</figcaption>\n" if panel.explained else ""
        figures.append(f"<figure>\n<h3>{escape(panel.title)}</h3>\n{svg}\n{caption}</figure>")
    kind = "panels three" if len(figures) % 3 == 0 else "panels"
    return f'<div class="{kind}">\n' + "\n".join(figures) + "\n</div>" if figures else ""


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose cells are HTML; the first column is text, the others are numbers."""
    if not rows:
        return ""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    lines = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    title = f"<caption>{caption}</caption>\n" if caption else ""
    return f"""<div class="scroll" tabindex="0"><table>
{title}<thead><tr>{top}</tr></thead>
<tbody>
{lines}
</tbody>
</table></div>"""


def from_markdown(text: str) -> str:
    """A table of ours in Markdown, with its bold and underlined cells."""
    lines = [[_inline(cell.strip()) for cell in line.strip().strip("|").split(" | ")] for line in text.splitlines()]
    return table("", lines[0], lines[2:])


def _inline(cell: str) -> str:
    cell = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(cell))
    return re.sub(r"&lt;u&gt;(.+?)&lt;/u&gt;", r"<u>\1</u>", cell)
