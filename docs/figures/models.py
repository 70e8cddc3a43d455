"""Draws overview.svg of the README, vmsst.svg and ems.svg of docs/concepts.md, next to this file.

python docs/figures/models.py
"""

import dataclasses
import html
import pathlib

_BOX_HEIGHT, _LINE = 46, 17
_COLORS = {
  "text": ("#f4f4f5", "#71717a"),
  "network": ("#e0e7ff", "#4338ca"),
  "vector": ("#dcfce7", "#15803d"),
  "loss": ("#ffedd5", "#c2410c"),
}
"""Fill and border of each kind of box."""


@dataclasses.dataclass(frozen=True)
class Box:
  """A labeled rectangle; lines of the label are separated by newlines."""

  x: int
  y: int
  width: int
  kind: str
  label: str

  @property
  def height(self) -> int:
    """Height for the label's lines."""
    return _BOX_HEIGHT + _LINE * self.label.count("\n")

  def svg(self) -> str:
    """Returns the rectangle and its label."""
    fill, border = _COLORS[self.kind]
    lines = self.label.split("\n")
    first = self.y + self.height / 2 - _LINE * (len(lines) - 1) / 2 + 5
    text = "".join(
      f'<text x="{self.x + self.width / 2}" y="{first + _LINE * number}" text-anchor="middle" '
      f'font-weight="{400 if number else 600}">{html.escape(line)}</text>'
      for number, line in enumerate(lines)
    )
    return (
      f'<rect x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="6" '
      f'fill="{fill}" stroke="{border}" stroke-width="1.5"/>{text}'
    )


def arrow(start: Box, end: Box) -> str:
  """Returns an arrow from the right side of a box to the left side of another."""
  x1, y1 = start.x + start.width, start.y + start.height / 2
  x2, y2 = end.x - 3, end.y + end.height / 2
  middle = (x1 + x2) / 2
  return (
    f'<path d="M{x1},{y1} C{middle},{y1} {middle},{y2} {x2},{y2}" fill="none" stroke="#52525b" '
    f'stroke-width="1.5" marker-end="url(#head)"/>'
  )


def drawing(width: int, height: int, title: str, arrows: list[str], boxes: list[Box]) -> str:
  """Returns an SVG file."""
  head = (
    '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#52525b"/></marker>'
  )
  body = "\n".join([*arrows, *(box.svg() for box in boxes)])
  return (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
    f'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#18181b">\n'
    f"<title>{html.escape(title)}</title>\n<defs>{head}</defs>\n"
    f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>\n{body}\n</svg>\n'
  )


def overview() -> str:
  """Returns the figure of what goes into VMSST and what its vectors are for."""
  bitext = Box(20, 110, 170, "text", "translations\nOPUS, TSV, TMX, JSONL")
  semantic = Box(250, 50, 160, "network", "semantic encoder\nwhat is said")
  language = Box(250, 170, 160, "network", "language encoder\nhow it is said")
  vector = Box(480, 50, 150, "vector", "sentence vector\nfor all languages")
  decoder = Box(480, 170, 150, "network", "decoder\nwrites both texts")
  uses = [
    Box(710, y, 190, "text", label)
    for y, label in (
      (10, "search\nvmsst search, index"),
      (85, "mining translations\nvmsst mine"),
      (160, "scoring, classifying\nencode, vmsst score"),
      (235, "generating\nvmsst translate"),
    )
  ]
  arrows = [
    arrow(bitext, semantic),
    arrow(bitext, language),
    arrow(semantic, vector),
    *(arrow(encoder, decoder) for encoder in (semantic, language)),
    *(arrow(vector, use) for use in uses[:3]),
    arrow(decoder, uses[3]),
  ]
  boxes = [bitext, semantic, language, vector, decoder, *uses]
  return drawing(920, 310, "From translations to sentence vectors and their uses", arrows, boxes)


def vmsst() -> str:
  """Returns the figure of VMSST."""
  source = Box(20, 60, 150, "text", "sentence x_i\nin language i")
  target = Box(20, 230, 150, "text", "translation x_j\nin language j")
  semantic = Box(230, 145, 160, "network", "semantic encoder\nshared by all languages")
  languages = [Box(230, y, 160, "network", "language encoder") for y in (30, 270)]
  latents = [
    Box(450, 30, 140, "vector", "z_i\nlanguage of x_i"),
    Box(450, 145, 140, "vector", "z_sem\nmeaning of both"),
    Box(450, 260, 140, "vector", "z_j\nlanguage of x_j"),
  ]
  decoder = Box(650, 145, 130, "network", "decoder\nno cross-attention")
  losses = [
    Box(840, 90, 190, "loss", "reconstruction\nof x_i and x_j"),
    Box(840, 200, 190, "loss", "translation\nfrom the vector alone"),
  ]
  divergence = Box(650, 260, 130, "loss", "KL\nlatents to N(0, I)")
  first, meaning, second = latents
  arrows = [
    *(arrow(side, semantic) for side in (source, target)),
    *(arrow(side, own) for side, own in zip((source, target), languages, strict=True)),
    arrow(languages[0], first),
    arrow(semantic, meaning),
    arrow(languages[1], second),
    *(arrow(latent, decoder) for latent in latents),
    *(arrow(decoder, loss) for loss in losses),
    *(arrow(latent, divergence) for latent in (meaning, second)),
  ]
  boxes = [source, target, semantic, *languages, *latents, decoder, divergence, *losses]
  return drawing(1050, 350, "VMSST: two encoders, three latents and a decoder", arrows, boxes)


def ems() -> str:
  """Returns the figure of EMS."""
  source = Box(20, 50, 150, "text", "sentence x_i\nin language i")
  target = Box(20, 180, 150, "text", "translation x_j\nin language j")
  encoder = Box(230, 115, 150, "network", "encoder\nshared by both")
  vectors = [
    Box(440, 50, 140, "vector", "vector of x_i\nmean over tokens"),
    Box(440, 180, 140, "vector", "vector of x_j\nmean over tokens"),
  ]
  heads = [
    Box(640, 50, 160, "network", "XTR head\n+ language to predict"),
    Box(640, 180, 160, "network", "MLP"),
  ]
  losses = [
    Box(860, 50, 190, "loss", "token reconstruction\ntokens of the translation"),
    Box(860, 180, 190, "loss", "contrastive loss\nother pairs are negatives"),
  ]
  arrows = [
    *(arrow(side, encoder) for side in (source, target)),
    *(arrow(encoder, vector) for vector in vectors),
    *(arrow(vector, head) for vector in vectors for head in heads),
    *(arrow(head, loss) for head, loss in zip(heads, losses, strict=True)),
  ]
  boxes = [source, target, encoder, *vectors, *heads, *losses]
  return drawing(1070, 290, "EMS: an encoder and two heads", arrows, boxes)


def main() -> None:
  """Writes the figures."""
  folder = pathlib.Path(__file__).parent
  for name, figure in {"overview": overview(), "vmsst": vmsst(), "ems": ems()}.items():
    (folder / f"{name}.svg").write_text(figure, encoding="utf-8")


if __name__ == "__main__":
  main()
