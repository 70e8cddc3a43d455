"""SeqIO mixtures of the datasets of `vmsst data build`, to be called from gin.

    MIXTURE_OR_TASK_NAME = @mixtures.opus()
    mixtures.opus.config = 'vmsst'
    mixtures.opus.vocabulary = %VOCABULARY

If your own module must register a name, as for T5X's `DatasetConfig.module`, that is one call:

    # my_data.py: registers opus_vmsst and its tasks opus_vmsst_deu_eng ...
    mixtures.opus("vmsst", vocabularies.SentencePieceVocabulary("/data/mt5.model"), "/data/tfds")
"""

import functools
from collections.abc import Sequence

from vmsst.data import features, seqio_tasks, tables, vocabularies
from vmsst.opus import datasets


def opus(
  config: str,
  vocabulary: vocabularies.Vocabulary,
  data_dir: str | None = None,
  *,
  languages: Sequence[str] | None = None,
  pivots: Sequence[str] | None = None,
  weighting: str = "proportional",
  temperature: float | None = None,
  max_length: int | None = 512,
  teacher: str | None = None,
) -> str:
  """Returns the name of a mixture of a built dataset, with one task per language pair.

  The name is "opus_" and the name of the config. The same arguments give the same mixture; others
  get a number after the name. The splits are `train` and, if the dataset has it, `validation`.

  Args:
    config: Name of the recipe of the dataset.
    vocabulary: Tokenizes both sides.
    data_dir: The output folder of `vmsst data build`. None: the default of TFDS, $TFDS_DATA_DIR or
      ~/tensorflow_datasets; `t5x --tfds_data_dir` has precedence over both.
    languages: Codes of the languages to use; None: all of the dataset.
    pivots: Codes of languages; pairs without one of them are not used. None: all pairs.
    weighting: How often each language pair is sampled, as in `bitext.files`.
    temperature: As in `bitext.files`.
    max_length: Pairs with a side of more tokens are dropped; None: no limit.
    teacher: Folder with the vectors of all files of the dataset, from `vmsst data embed`: the
      features `teacher_inputs` and `teacher_targets`, float32 [S].

  Raises:
    InputError: the dataset does not exist, or it has no pair of these languages.
  """
  power = seqio_tasks.weight_power(weighting, temperature)
  name, folder = datasets.find(config, data_dir)
  splits = datasets.language_pairs(folder, languages, pivots)
  mixture = seqio_tasks.unique_name(
    name, str(folder), vocabulary, list(splits), power, max_length, teacher
  )
  output_features = features.pair_features(vocabulary, teacher=bool(teacher))

  sources = {
    pair: seqio_tasks.TableSource(
      {
        name: functools.partial(tables.open_records, split.files, split.counts, teacher)
        for name, split in by_split.items()
      }
    )
    for pair, by_split in splits.items()
  }
  return seqio_tasks.add(mixture, sources, output_features, vocabulary, max_length, power)
