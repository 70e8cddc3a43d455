"""Distills static encoders, which have no transformer and are much faster than their teachers.

References: Tulkens and van Dongen 2024 (Model2Vec), Arora et al. 2017 (SIF weights).
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

# A token with this relative frequency gets half the maximum weight, as in Model2Vec.
_SIF = 1e-4
# Texts per tokenizer call, and tokens per encoder batch.
_TEXTS, _TOKENS = 10_000, 1024


def distill_static(
  encoder: Encoder,
  texts: Texts | None = None,
  *,
  dimensions: int = 256,
  words: int = 0,
  trim: bool = False,
) -> Encoder:
  """Distills a static encoder, in which a sentence vector is the mean of token vectors.

  The teacher, `encoder`, encodes each token separately. PCA then reduces the width of the token
  vectors, and frequent tokens get small weights. To make the static encoder more accurate, train it
  on pairs with `vmsst.finetune`.

  Args:
    encoder: The teacher, an encoder with a tokenizer.json.
    texts: Texts to count tokens in. If `texts` is omitted, token frequencies are estimated with
      Zipf's law from the order of the tokenizer's vocabulary.
    dimensions: Width of the vectors, at most the encoder's width.
    words: Number of words to add to the vocabulary. The most frequent words in `texts` are added,
      except words that are already single tokens.
    trim: Whether to keep only single characters and the tokens that occur in `texts`; see
      `Encoder.trim`.

  Raises:
    InputError: If the encoder has no tokenizer.json, or if `words` or `trim` is passed without
      `texts`.
  """
  errors.as_integer("dimensions", dimensions, maximum=encoder.dimension)
  errors.as_integer("words", words, minimum=0)
  corpus = [] if texts is None else input_texts.as_list(texts)
  if (words or trim) and not corpus:
    raise errors.InputError("the options `words` and `trim` require texts; pass texts")
  if trim:
    encoder = encoder.trim(corpus)
  tokenizer = encoder.vocabulary
  if not isinstance(tokenizer, tokenizers.HuggingFaceVocabulary):
    raise errors.InputError(f"{encoder.path} has no tokenizer.json; use an encoder with this file")
  vocabulary, pieces = tokenizers.for_static_encoder(tokenizer, corpus, words)
  special, has_end = tokenizer.special_ids, tokenizer.eos_id is not None
  start, end = special[: len(special) - has_end], special[len(special) - has_end :]
  ids = [[*start, *piece, *end] for piece in pieces]
  vector_VD = encoder.encode_ids(ids, batch_size=_TOKENS)

  # PCA: project onto the components with the largest variance.
  vector_VD -= vector_VD.mean(axis=0)
  _, component_DD = np.linalg.eigh(vector_VD.T @ vector_VD)  # in ascending order of variance
  table_VS = vector_VD @ component_DD[:, : -dimensions - 1 : -1]

  if corpus:
    count_V = np.zeros(len(ids))
    for chunk in encoding.windows(corpus, _TEXTS):
      tokens = itertools.chain.from_iterable(vocabulary.encode(chunk, encoder.max_length))
      count_V += np.bincount(np.fromiter(tokens, np.int64), minlength=len(ids))
  else:
    count_V = 1 / np.arange(2, len(ids) + 2)
  table_VS *= (_SIF / (_SIF + count_V / max(1, count_V.sum())))[:, None].astype(np.float32)
  if vocabulary.unk_id is not None:
    # Some packages include unknown tokens in the mean of the token vectors. If the unknown token
    # has a zero vector, the mean becomes shorter, but keeps its direction.
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
