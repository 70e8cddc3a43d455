import opus_dataset
import pytest

from vmsst import errors
from vmsst.tasks import bitext, epochs
from vmsst.tasks.opus import mixtures
from vmsst.text import vocabularies

BYTES = vocabularies.ByteVocabulary()


def test_epochs_of_a_built_dataset_and_of_files(tmp_path):
  pairs = [(f"Haus {i}", f"house {i}") for i in range(25)]
  opus_dataset.write(tmp_path, "epochs", {("de", "en"): pairs, ("fr", "en"): pairs[:15]})
  built = mixtures.opus("epochs", BYTES, str(tmp_path))  # one pair of each is for validation
  assert epochs.steps(built, epochs=30, batch_size=32) == 36  # 30 * (24 + 14) / 32 = 35.6
  one = mixtures.opus("epochs", BYTES, str(tmp_path), languages=("fr", "en"))
  assert epochs.steps(one, epochs=1, batch_size=7) == 2
  assert epochs.steps(one, epochs=0.5, batch_size=7) == 1
  assert epochs.steps(one, epochs=1, batch_size=1, split="validation") == 1
  (tmp_path / "de-en.tsv").write_text("".join("\t".join(pair) + "\n" for pair in pairs))
  own = bitext.files(str(tmp_path / "de-en.tsv"), BYTES)
  assert epochs.steps(own, epochs=2, batch_size=10) == 5


def test_epochs_that_have_no_number_of_steps(tmp_path):
  opus_dataset.write(tmp_path, "epochs", {("de", "en"): [("a", "b"), ("c", "d")]})
  name = mixtures.opus("epochs", BYTES, str(tmp_path))
  with pytest.raises(errors.InputError, match="epochs is 0"):
    epochs.steps(name, epochs=0, batch_size=1)
  with pytest.raises(errors.InputError, match="batch_size"):
    epochs.steps(name, epochs=1, batch_size=0)
  with pytest.raises(errors.InputError, match=r"of .* \(test\) is unknown.*set TRAIN_STEPS"):
    epochs.steps(name, epochs=1, batch_size=1, split="test")
