"""Distills static encoders, which are much faster than the encoders that they come from.

References: Tulkens and van Dongen 2024 (Model2Vec), Arora et al. 2017 (SIF, the weights).
"""

import itertools

import numpy as np

from vmsst import errors
from vmsst.data import input_texts
from vmsst.data.input_texts import Texts
from vmsst.encoder import encoding
from vmsst.encoder.encoder import Encoder
from vmsst.formats import tokenizers
from vmsst.networks import sentence_encoder, static

# Frequency of a token that halves its weight, as in Model2Vec.
_SIF = 1e-4
# Texts that are tokenized, and tokens that are encoded, at once.
_TEXTS, _TOKENS = 10_000, 1024


def distill_static(
  encoder: Encoder,
  texts: Texts | None = None,
  *,
  dimensions: int = 256,
  words: int = 0,
  trim: bool = False,
) -> Encoder:
  """Distill a static encoder: a table of token vectors, whose mean is the sentence vector.

  The vector of a token is the encoder's vector of this token alone, reduced by PCA and multiplied
  by a weight, which is small for frequent tokens. To make the static encoder more accurate, train
  it on pairs with `vmsst.finetune`.

  Args:
    encoder: An encoder with a tokenizer.json.
    texts: Texts to count tokens in. If omitted, frequencies follow Zipf's law in the order of the
      tokenizer's vocabulary.
    dimensions: Width of the vectors, at most the encoder's.
    words: Words of the texts to add to the tokens: the most frequent ones of several tokens.
    trim: Keep only the tokens of the texts and single characters; see `Encoder.trim`.

  Raises:
    InputError: the tokenizer is of another kind, or there are no texts for `words` or `trim`.
  """
  errors.as_integer("dimensions", dimensions, maximum=encoder.dimension)
  errors.as_integer("words", words, minimum=0)
  listed = [] if texts is None else input_texts.as_list(texts)
  if (words or trim) and not listed:
    raise errors.InputError("words and trim need texts; give some")
  if trim:
    encoder = encoder.trim(listed)
  whole = encoder.vocabulary
  if not isinstance(whole, tokenizers.HuggingFaceVocabulary):
    raise errors.InputError(f"{encoder.path} has no tokenizer.json; give another encoder")
  vocabulary, pieces = tokenizers.for_static_encoder(whole, listed, words)
  special, has_end = whole.special_ids, whole.eos_id is not None
  start, end = special[: len(special) - has_end], special[len(special) - has_end :]
  ids = [[*start, *piece, *end] for piece in pieces]
  vector_VD = encoder.encode_ids(ids, batch_size=_TOKENS)

  vector_VD -= vector_VD.mean(axis=0)
  _, component_DD = np.linalg.eigh(vector_VD.T @ vector_VD)  # in ascending order
  table_VS = vector_VD @ component_DD[:, : -dimensions - 1 : -1]

  if listed:
    count_V = np.zeros(len(ids))
    for chunk in encoding.windows(listed, _TEXTS):
      tokens = itertools.chain.from_iterable(vocabulary.encode(chunk, encoder.max_length))
      count_V += np.bincount(np.fromiter(tokens, np.int64), minlength=len(ids))
  else:
    count_V = 1 / np.arange(2, len(ids) + 2)
  table_VS *= (_SIF / (_SIF + count_V / max(1, count_V.sum())))[:, None].astype(np.float32)
  if vocabulary.unk_id is not None:
    # Packages that do not skip it compute the same vectors, up to their length before scaling.
    table_VS[vocabulary.unk_id] = 0
  network = sentence_encoder.SentenceEncoder(
    static.StaticConfig(len(ids), dimensions), dimensions, head=False, normalize=True
  )
  return Encoder(
    network,
    {"token_embedder": {"embedding": table_VS}},
    vocabulary,
    max_length=encoder.max_length,
    languages=encoder.languages,
  )
