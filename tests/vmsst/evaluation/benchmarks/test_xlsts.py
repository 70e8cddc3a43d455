import benchmark_runs
import fake_encoders
import line_files
import numpy as np
import pytest
from scipy import stats

from vmsst import errors
from vmsst.evaluation.benchmarks import xlsts

TRACKS = ("1.ar-ar", "2.ar-en", "3.es-es", "4a.es-en", "4b.es-en", "5.en-en", "6.tr-en")


@pytest.fixture
def archives(tmp_path):
  """Writes both archives, unpacked next to each other; returns angles and scores by track."""
  rng = np.random.default_rng(0)
  texts, golds = (tmp_path / "xlsts" / name for name in ("STS2017.eval.v1.1", "STS2017.gs"))
  sets = {}
  for track in TRACKS:
    angles, scores = np.round(rng.uniform(0, 1, [5, 2]), 2), np.round(rng.uniform(0, 5, 5), 1)
    lines = [f"{track} first {x}\t{track} second {y}\tnote\tnote\n" for x, y in angles]
    if track == "6.tr-en":
      lines += ["not\tscored\n"] * 5
    line_files.write_text(texts / f"STS.input.track{track}.txt", "".join(lines))
    line_files.write_lines(golds / f"STS.gs.track{track}.txt", scores)
    sets[track] = np.cos(angles[:, 0] - angles[:, 1]), scores
  return tmp_path, sets


def test_averages_are_those_of_the_paper_and_encoders_get_languages(archives):
  root, sets = archives
  encoder = fake_encoders.PolyglotEncoder(fake_encoders.angle_vector)
  found = benchmark_runs.run_benchmark(xlsts.BENCHMARK, encoder, root)
  assert [each["name"] for each in found["results"]] == [f"track{track}" for track in TRACKS]
  for metric, function in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
    value = {
      track[-5:]: 100 * function(*sets[track]).statistic for track in TRACKS if "b" not in track
    }
    same, different = [value["ar-ar"], value["es-es"]], ["ar-en", "es-en", "tr-en"]
    different = [value[pair] for pair in different]
    summary = found["summary"]
    assert summary[metric] == pytest.approx(np.mean(same + different), abs=1e-3)
    assert summary[f"{metric} same language"] == pytest.approx(np.mean(same), abs=1e-3)
    assert summary[f"{metric} different languages"] == pytest.approx(np.mean(different), abs=1e-3)
  assert len(found["summary"]) == 6
  told = {tuple(text.split()[:2]): code for text, code in encoder.languages.items()}
  # English comes first in these three files, and second in track 4a.
  assert [told[f"{track}-en", "first"] for track in ("2.ar", "4b.es", "6.tr")] == ["en"] * 3
  assert [told[f"{track}-en", "second"] for track in ("2.ar", "4b.es", "6.tr")] == [
    "ar",
    "es",
    "tr",
  ]
  assert (told["4a.es-en", "first"], told["4a.es-en", "second"]) == ("es", "en")


def test_a_missing_track_is_reported_and_broken_ones_are_errors(archives):
  root, _ = archives
  texts = root / "xlsts" / "STS2017.eval.v1.1"
  (texts / "STS.input.track2.ar-en.txt").unlink()
  found = benchmark_runs.run_benchmark(
    xlsts.BENCHMARK, fake_encoders.PolyglotEncoder(fake_encoders.angle_vector), root
  )
  assert found["missing"] == ["track2.ar-en"]
  assert "pearson same language" in found["summary"]
  assert "pearson (incomplete)" in found["summary"]
  (root / "xlsts/STS2017.gs/STS.gs.track1.ar-ar.txt").write_text("1\n2\n", encoding="utf-8")
  with pytest.raises(errors.InputError, match=r"track1.ar-ar.txt has 5 lines and .* has 2"):
    xlsts.read(root)
  (texts / "STS.input.track1.ar-ar.txt").rename(texts / "STS.input.track0.ar-qq.txt")
  with pytest.raises(errors.InputError, match=r"neither .*STS.gs.track0.ar-qq.txt"):
    xlsts.read(root)
  (root / "xlsts/STS2017.gs/STS.gs.track0.ar-qq.txt").write_text("1\n" * 5, encoding="utf-8")
  with pytest.raises(errors.InputError, match=r"track0.ar-qq.txt: unknown language code 'qq'"):
    xlsts.read(root)
