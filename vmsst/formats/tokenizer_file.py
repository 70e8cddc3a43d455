"""Exports vocabularies as `tokenizer.json`, the file of Hugging Face's tokenizers, with equal ids.

A text may spell a special token: "</s>" is often just markup of a web page, and this library's
vocabularies give it the ids of its characters. Special tokens therefore start with a space in the
file (" </s>"). No text can spell that, since spaces are replaced before pieces are looked up.
"""

import dataclasses
import importlib
import itertools
import json
import unicodedata
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from vmsst import arrays, errors
from vmsst.data import vocabularies
from vmsst.formats import hugging_face_vocabulary

# How SentencePiece writes a space.
_SPACE = "\u2581"
# Σ at the end of a word: after a letter of the word, and before none.
_FINAL_SIGMA = r"\p{Cased}\p{Case_Ignorable}*\KΣ(?!\p{Case_Ignorable}*\p{Cased})"


@dataclasses.dataclass(frozen=True)
class ExportedTokenizer:
  """A tokenizer, and settings that its file does not have.

  Attributes:
    content: Content of `tokenizer.json`.
    padding: The padding token.
    padding_id: Its id, which is 0 in this library.
    unknown: The token for unknown text, or None.
    eos: The token after a sentence, or None.
    splits_special_tokens: Whether special tokens that a text spells are tokenized as text.
  """

  content: bytes
  padding: str
  padding_id: int
  unknown: str | None
  eos: str | None
  splits_special_tokens: bool


def export_tokenizer(
  vocabulary: vocabularies.Vocabulary, *, pretokenized: bool = False
) -> ExportedTokenizer:
  """Returns a tokenizer with the ids of a vocabulary, EOS included.

  The ids of 50,000 sentences in 112 languages are equal. Known differences:

  * Capitals of Unicode 14 to 17: tokenizers lowercase them, this library's `lowercase` does not.
  * Some decomposed letters: kana, polytonic Greek and Hangul.
  * Texts that spell a byte ("<0x41>"), if the vocabulary falls back to bytes.

  Args:
    vocabulary: A vocabulary of this library.
    pretokenized: Texts will be split into words (`vmsst.data.word_splitting.split_words`) before
      they are tokenized, so the tokenizer need not do it for a vocabulary that does.

  Raises:
    InputError: the file format cannot express the vocabulary.
  """
  if isinstance(vocabulary, hugging_face_vocabulary.HuggingFaceVocabulary):
    return _of_hugging_face(vocabulary)
  if isinstance(vocabulary, vocabularies.ByteVocabulary):
    made, special = _of_bytes(vocabulary)
  elif type(vocabulary) is vocabularies.SentencePieceVocabulary:
    if vocabulary.pretokenize and not pretokenized:
      raise errors.InputError(
        f"the vocabulary {vocabulary.path} splits text into words by the rules of its language "
        "(Moses, jieba, Juman++), which a tokenizer.json cannot do; either split texts before they "
        "are encoded (vmsst.data.word_splitting.split_words) and pass --pretokenized, or use "
        "`vmsst export safetensors`, which vmsst.load opens"
      )
    made, special = _of_sentencepiece(vocabulary)
  else:
    raise errors.InputError(
      f"a {type(vocabulary).__name__} cannot be written as tokenizer.json; use `vmsst export "
      "safetensors`, which vmsst.load opens"
    )
  eos = None if vocabulary.eos_id is None else special[vocabulary.eos_id]
  if eos is not None:
    made.post_processor = processors.TemplateProcessing(
      single=["$A", eos], pair=["$A", eos, "$B", eos], special_tokens=[(eos, vocabulary.eos_id)]
    )
  made.add_special_tokens([tokenizers.AddedToken(x, normalized=False) for x in special.values()])
  return ExportedTokenizer(
    content=made.to_str(pretty=False).encode(),
    padding=special[arrays.PAD_ID],
    padding_id=arrays.PAD_ID,
    unknown=None if vocabulary.unk_id is None else special[vocabulary.unk_id],
    eos=eos,
    splits_special_tokens=True,
  )


def _of_hugging_face(
  vocabulary: hugging_face_vocabulary.HuggingFaceVocabulary,
) -> ExportedTokenizer:
  """Returns the imported file, without its own padding and truncation."""
  record = json.loads(vocabulary.content)
  record["padding"] = record["truncation"] = None
  token_by_id = {token["id"]: token["content"] for token in record["added_tokens"]}

  def token(value: int | None) -> str | None:
    # In this library's ids, padding and 0 are swapped.
    return None if value is None else token_by_id.get({0: vocabulary.padding_id}.get(value, value))

  return ExportedTokenizer(
    content=json.dumps(record, ensure_ascii=False).encode(),
    # Without a token of its own, padding may be any token: it has no effect.
    padding=token_by_id.get(vocabulary.padding_id) or token(vocabulary.eos_id) or "",
    padding_id=vocabulary.padding_id,
    unknown=token(vocabulary.unk_id),
    eos=token(vocabulary.eos_id),
    splits_special_tokens=False,
  )


def _of_bytes(vocabulary: vocabularies.ByteVocabulary) -> tuple[Any, dict[int, str]]:
  """Returns a tokenizer with one token for each byte, and its special tokens by id."""
  special = {0: " <pad>", 1: " </s>", 2: " <unk>"}
  ids = {token: i for i, token in special.items()}
  # A letter stands for each byte: itself if visible, else one from U+0100 on.
  visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
  others = iter(range(0x100, 0x200))
  for byte in range(0x100):
    ids[chr(byte if byte in visible else next(others))] = byte + 3
  made = tokenizers.Tokenizer(models.BPE(ids, [], unk_token=special[2]))
  if vocabulary.lowercase:
    made.normalizer = normalizers.Sequence(_lowercase())
  made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
  made.decoder = decoders.ByteLevel()
  return made, special


def _of_sentencepiece(
  vocabulary: vocabularies.SentencePieceVocabulary,
) -> tuple[Any, dict[int, str]]:
  """Returns a tokenizer with the model's pieces, and its special tokens by id."""
  # The module makes its classes at run time, unseen by type checkers.
  proto: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
  model = proto.ModelProto()
  model.ParseFromString(vocabulary.model_bytes)
  normalizer, trainer, kinds = (
    model.normalizer_spec,
    model.trainer_spec,
    proto.ModelProto.SentencePiece,
  )
  for name, value, wanted in (
    ("escape_whitespaces", normalizer.escape_whitespaces, True),
    ("treat_whitespace_as_suffix", trainer.treat_whitespace_as_suffix, False),
    ("model_type", trainer.model_type, (trainer.UNIGRAM, trainer.BPE)),
  ):
    if value not in (wanted if isinstance(wanted, tuple) else (wanted,)):
      raise errors.InputError(
        f"the SentencePiece model {vocabulary.path} has {name} = {value}, which a tokenizer.json "
        "cannot express"
      )
  symbols = sorted((x.piece for x in model.pieces if x.type == kinds.USER_DEFINED), key=len)
  overlapping = any(
    len(x) > len(y[i:]) and x.startswith(y[i:])
    for x, y in itertools.product(symbols, repeat=2)
    for i in range(1, len(y))
  )
  if symbols and (trainer.model_type == trainer.BPE or overlapping):
    raise errors.InputError(
      f"the SentencePiece model {vocabulary.path} has user-defined symbols ({symbols[0]}) and is a "
      "BPE, or they overlap, which a tokenizer.json cannot express"
    )
  spelled = (kinds.NORMAL, kinds.USER_DEFINED, kinds.BYTE)
  names = [x.piece if x.type in spelled else f" {x.piece}" for x in model.pieces]
  special = {
    i: names[i] for i, x in enumerate(model.pieces) if x.type in (kinds.CONTROL, kinds.UNKNOWN)
  }
  is_normal = [x.type == kinds.NORMAL for x in model.pieces]
  # Unknown text costs the lowest score of all pieces, which must be that of a normal piece.
  lowest = min((x.score for x in model.pieces if x.type == kinds.NORMAL), default=0.0)
  # SentencePiece prefers user-defined symbols to all other pieces.
  scores = [
    x.score if x.type == kinds.NORMAL else -0.1 if x.type == kinds.USER_DEFINED else lowest
    for x in model.pieces
  ]
  unknown = next(i for i, x in enumerate(model.pieces) if x.type == kinds.UNKNOWN)
  if trainer.model_type == trainer.UNIGRAM:
    unigram = models.Unigram(list(zip(names, scores, strict=True)), unknown, trainer.byte_fallback)
    made = tokenizers.Tokenizer(unigram)
  else:
    made = tokenizers.Tokenizer(
      models.BPE(
        {name: i for i, name in enumerate(names)},
        _merges(names, scores, is_normal),
        unk_token=names[unknown],
        fuse_unk=True,
        byte_fallback=trainer.byte_fallback,
      )
    )
  steps = _lowercase() if vocabulary.lowercase else []
  # SentencePiece finds user-defined symbols before it normalizes, the longest first. Meanwhile, a
  # character for private use stands for each of them.
  signs = [(x, chr(0xF0000 + i)) for i, x in enumerate(reversed(symbols))]
  steps += [normalizers.Replace(symbol, sign) for symbol, sign in signs]
  steps += _spm_steps(normalizer, vocabulary)
  steps += [normalizers.Replace(sign, symbol) for symbol, sign in signs]
  steps.append(normalizers.Replace(" ", _SPACE))
  made.normalizer = normalizers.Sequence(steps)
  if not any(_SPACE in x.piece[1:] for x in model.pieces if x.type in spelled):
    # No piece extends across a space, so each word can be looked up separately.
    made.pre_tokenizer = pre_tokenizers.Split(_SPACE, "merged_with_next")
  made.decoder = decoders.Sequence(
    [
      decoders.Replace(_SPACE, " "),
      decoders.ByteFallback(),
      decoders.Fuse(),
      decoders.Strip(" ", 1, 0),
    ]
  )
  return made, special


def _lowercase() -> list[Any]:
  """Returns `vocabularies.lowercase` as normalizers, which lowercase letters one by one but Σ."""
  return [normalizers.Replace(tokenizers.Regex(_FINAL_SIGMA), "ς"), normalizers.Lowercase()]


def _spm_steps(spec: Any, vocabulary: vocabularies.SentencePieceVocabulary) -> list[Any]:
  """Returns SentencePiece's steps before it replaces spaces, as normalizers."""
  steps: list[Any] = []
  if spec.precompiled_charsmap:
    mapped = normalizers.Precompiled(spec.precompiled_charsmap)
    steps += [normalizers.Replace(*pair) for pair in _unseen_signs(mapped, vocabulary)]
    steps.append(mapped)
  if spec.remove_extra_whitespaces:
    steps += [
      normalizers.Replace(tokenizers.Regex("^ +| +$"), ""),
      normalizers.Replace(tokenizers.Regex(" {2,}"), " "),
    ]
  if spec.add_dummy_prefix:
    steps.append(normalizers.Prepend(" "))
  return steps


def _unseen_signs(
  mapped: Any, vocabulary: vocabularies.SentencePieceVocabulary
) -> list[tuple[str, str]]:
  """Returns decomposed vowel signs and their composed forms, for those that `Precompiled` misses.

  SentencePiece composes them. `Precompiled` reads graphemes of at most five bytes; these have six,
  and are frequent in Tamil.
  """
  import sentencepiece

  processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model_bytes)
  signs = []
  for sign in map(chr, range(0x300, 0x10000)):
    parts = unicodedata.normalize("NFD", sign)
    if len(parts) == 1 or not unicodedata.category(sign).startswith("M"):
      continue
    # The letter before the signs keeps them from starting the text.
    made = processor.normalize(f"x{parts}")
    if made.endswith(f"x{sign}") and mapped.normalize_str(parts) != sign:
      signs.append((parts, sign))
  return sorted(signs, key=lambda pair: -len(pair[0]))


def _merges(names: list[str], scores: list[float], normal: list[bool]) -> list[tuple[str, str]]:
  """Returns pairs of pieces that join into a piece, the best piece's first."""
  known = {name for name, is_normal in zip(names, normal, strict=True) if is_normal}
  merges = []
  for rank, i in enumerate(sorted(range(len(names)), key=lambda i: -scores[i])):
    if not normal[i]:
      continue
    for cut in range(1, len(names[i])):
      left, right = names[i][:cut], names[i][cut:]
      if left in known and right in known:
        merges.append((rank, left, right))
  return [(left, right) for _, left, right in merges]
