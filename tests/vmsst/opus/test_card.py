import collections

import opus_tree

from vmsst.data import formats
from vmsst.opus import card, recipes, releases


def test_the_card_shows_sources_and_what_was_left_out(tmp_path):
  rows = [("a", "b")]
  opus_tree.write(tmp_path, [opus_tree.Part("Europarl", "v8", ("de", "en"), rows)])
  (release,), _ = releases.scan(str(tmp_path))
  cell = ("deu_eng", "Europarl")
  text = card.text(
    card.Report(
      recipe=recipes.Recipe("mine", description="Two languages."),
      root=str(tmp_path),
      releases=[release],
      left_out=[formats.Fault(str(tmp_path / "x.zip"), "not <a> file")],
      cleaned={
        release.name: {
          "counts": collections.Counter(read=1110, empty=1, held_out=4, kept=1105),
          "held_out": {"tatoeba": 3},
          "faults": [(f"{release.paths[0]}/X.de:7", "truncated")],
          "fault_kinds": {"truncated": 2},
        }
      },
      merged={cell: {"read": 1105, "duplicate": 3, "near_duplicate": 0, "kept": 1102}},
      taken={cell: [1000, 102]},
      goals=[recipes.Goal("deu", 2000, 1000, 1102), recipes.Goal("eng", 0, 0, 0)],
      held_out={"tatoeba": 12, "ntrex": 5},
      splits={"train_deu_eng": [{"rows": 600, "bytes": 9}, {"rows": 400, "bytes": 8}]},
    )
  )
  for line in (
    "# opus_bitext/mine",
    "| train_deu_eng | 2 | 1,000 | 17 |",
    f"| Europarl | v8 | deu_eng | Europarl/v8/moses/de-en.txt.zip | {release.size} |",
    "| languages | corpus | read | empty | held out | duplicate | kept | training | validation |",
    "| deu_eng | Europarl | 1,110 | 1 | 4 | 3 | 1,102 | 1,000 | 102 |",
    "| all |  | 1,110 | 1 | 4 | 3 | 1,102 | 1,000 | 102 |",
    "| tatoeba | 12 | 3 |",
    "| ntrex | 5 | 0 |",
    "| deu | 2,000 | 1,102 | 1,000 | 50.0% |",
    "| eng | 0 | 0 | 0 |  |",
    "- x.zip: not &lt;a> file",
    "- Europarl.v8.de-en: 2 × truncated",
    "  - Europarl/v8/moses/de-en.txt.zip/X.de:7: truncated",
    '      "name": "mine",',
  ):
    assert line in text.splitlines()
  assert str(tmp_path) not in text
