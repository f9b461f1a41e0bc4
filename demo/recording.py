#!/usr/bin/env python3
"""recording.py DEMO WEIR CAST SVG: records the demo for those who will not run it.

CAST is asciinema's (asciicast v2: `asciinema play` shows it), SVG the same for the
README: its lines come as they came, and stay. The demo runs under another host name,
and pauses are two seconds at most.
"""

import html
import json
import re
import subprocess
import sys

COLUMNS, ROWS, PAUSE = 120, 86, 2
DONE = "claims checked, all true"
# Of the picture, in pixels.
WIDTH, HEIGHT, MARGIN = 8.4, 19, 16
STYLE = """
  .back { fill: #f6f8fa; stroke: #d0d7de; }
  text { fill: #1f2328; white-space: pre; font-size: 14px; }
  .bold { font-weight: 700; }
  .green { fill: #1a7f37; }
  .red { fill: #cf222e; }
  @media (prefers-color-scheme: dark) {
    .back { fill: #0d1117; stroke: #30363d; }
    text { fill: #e6edf3; }
    .green { fill: #3fb950; }
    .red { fill: #f85149; }
  }
  @media (prefers-reduced-motion: no-preference) {
    text { animation: come 1ms both; }
    @keyframes come { from { opacity: 0; } to { opacity: 1; } }
  }
"""
CLASSES = {"0": "", "1": "bold", "31": "red", "32": "green"}


def record(demo, weir, cast):
    """Runs the demo in a terminal of its own; what is nobody's business is left out."""
    play = f"unshare --uts sh -c 'hostname host && exec {demo} {weir}'"
    size = ["--cols", str(COLUMNS), "--rows", str(ROWS), "-i", str(PAUSE)]
    command = ["asciinema", "rec", "--overwrite", "-q", *size, "-c", play, cast]
    subprocess.run(command, check=True)
    with open(cast, encoding="utf-8") as file:
        header, *events = [json.loads(line) for line in file]
    kept = ("version", "width", "height", "timestamp", "idle_time_limit")
    header = {key: header[key] for key in kept}
    header["title"] = "make demo"
    with open(cast, "w", encoding="utf-8") as file:
        for line in [header, *events]:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    return events


def lines(events):
    """Each line of the terminal: when it began, its class and its text."""
    now, passed, whole, begun = 0.0, 0.0, "", None
    for at, kind, text in events:
        now += min(at - passed, PAUSE)
        passed = at
        if kind != "o":
            continue
        for part in re.split(r"(\n)", text.replace("\r", "")):
            if part != "\n":
                begun = now if begun is None and part else begun
                whole += part
                continue
            yield from wrapped(now if begun is None else begun, whole)
            whole, begun = "", None


def wrapped(at, line):
    """The line as a terminal breaks it; the demo colours a line as a whole."""
    codes = re.findall(r"\x1b\[(\d+)m", line)
    style = CLASSES[codes[0]] if codes else ""
    text = re.sub(r"\x1b\[\d+m", "", line)
    for begin in range(0, max(len(text), 1), COLUMNS):
        yield at, style, text[begin : begin + COLUMNS]


def draw(shown):
    """The picture."""
    width = round(COLUMNS * WIDTH + 2 * MARGIN)
    height = len(shown) * HEIGHT + 2 * MARGIN
    rows = []
    for row, (at, style, text) in enumerate(shown):
        if not text.strip():
            continue
        y = MARGIN + (row + 1) * HEIGHT - 5
        name = f' class="{style}"' if style else ""
        delay = f' style="animation-delay:{at:.2f}s"'
        rows.append(f'<text x="{MARGIN}" y="{y}"{name}{delay}>{html.escape(text)}</text>')
    font = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" font-family="{font}">',
            "<title>make demo</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="back" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
            *rows,
            "</svg>\n",
        ]
    )


def main():
    demo, weir, cast, svg = sys.argv[1:]
    shown = list(lines(record(demo, weir, cast)))
    if not any(DONE in text for _, _, text in shown):
        sys.exit("recording.py: the demo failed; nothing to be shown")
    with open(svg, "w", encoding="utf-8") as file:
        file.write(draw(shown))
    print(f"{cast} and {svg}: {len(shown)} lines")


if __name__ == "__main__":
    main()
