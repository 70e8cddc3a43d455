"""Vocabularies as `tokenizer.json`, the file of Hugging Face's tokenizers, with the same ids.

A text may spell a mark: "</s>" is four letters of a web page as often as the end of a sentence, and
a vocabulary of ours gives it the ids of its letters. So marks have a space in front in the file
(" </s>"): no text can spell that, since spaces are written otherwise before pieces are looked up.
"""

import dataclasses
import importlib
import json
import unicodedata
from typing import Any

from vmsst import errors, padding
from vmsst.text import hugging_face_vocabulary, vocabularies

# How SentencePiece writes a space.
_SPACE = "\u2581"
# Σ at the end of a word: it has letters before it in the word and none behind it.
_FINAL_SIGMA = r"\p{Cased}\p{Case_Ignorable}*\KΣ(?!\p{Case_Ignorable}*\p{Cased})"


@dataclasses.dataclass(frozen=True)
class ExportedTokenizer:
  """A tokenizer, and what a reader of it has to be told besides.

  Attributes:
    content: What `tokenizer.json` holds.
    padding: The token of padding.
    padding_id: Its id, which is 0 in this library.
    unknown: The token of what cannot be written, or None.
    end: The token behind a sentence, or None.
    marks_are_text: Whether a mark that stands in a text is text like any other.
  """

  content: bytes
  padding: str
  padding_id: int
  unknown: str | None
  end: str | None
  marks_are_text: bool


def export_tokenizer(
  vocabulary: vocabularies.Vocabulary, *, words_given: bool = False
) -> ExportedTokenizer:
  """Returns the tokenizer that gives a vocabulary's ids, its end mark included.

  The ids of 50,000 sentences in 112 languages are the same. What is known to differ: capitals that
  came with Unicode 14 to 17, where `lowercase` is set (small here, left alone by this library);
  some letters written as one and a sign behind them (decomposed kana, polytonic Greek, Hangul);
  and a text that spells a byte ("<0x41>"), where the vocabulary falls back to bytes.

  Args:
    vocabulary: One of this library's.
    words_given: Texts will have been split into words (`vmsst.text.word_splitting.split_words`),
      so a vocabulary that does so may be written without it.

  Raises:
    InputError: it cannot be written so, or the package `tokenizers` is not installed.
  """
  if isinstance(vocabulary, hugging_face_vocabulary.HuggingFaceVocabulary):
    return _of_hugging_face(vocabulary)
  tokenizers = _import_tokenizers()
  if isinstance(vocabulary, vocabularies.ByteVocabulary):
    made, marks = _of_bytes(tokenizers, vocabulary)
  elif isinstance(vocabulary, vocabularies.SentencePieceVocabulary):
    if vocabulary.pretokenize and not words_given:
      raise errors.InputError(
        f"the vocabulary {vocabulary.path} splits text into words by the rules of its language "
        "(Moses, jieba, Juman++), which no tokenizer.json can. Either split texts before they are "
        "encoded (vmsst.text.word_splitting.split_words) and pass --words-given, or use `vmsst "
        "export safetensors`, which vmsst.load opens"
      )
    made, marks = _of_sentencepiece(tokenizers, vocabulary)
  else:
    raise errors.InputError(f"a {type(vocabulary).__name__} cannot be written as tokenizer.json")
  end = None if vocabulary.eos_id is None else marks[vocabulary.eos_id]
  if end is not None:
    made.post_processor = tokenizers.processors.TemplateProcessing(
      single=["$A", end], pair=["$A", end, "$B", end], special_tokens=[(end, vocabulary.eos_id)]
    )
  made.add_special_tokens([tokenizers.AddedToken(x, normalized=False) for x in marks.values()])
  return ExportedTokenizer(
    content=made.to_str(pretty=False).encode(),
    padding=marks[padding.PAD_ID],
    padding_id=padding.PAD_ID,
    unknown=None if vocabulary.unk_id is None else marks[vocabulary.unk_id],
    end=end,
    marks_are_text=True,
  )


def _of_hugging_face(
  vocabulary: hugging_face_vocabulary.HuggingFaceVocabulary,
) -> ExportedTokenizer:
  """The file as it was imported, without its own padding and truncation."""
  record = json.loads(vocabulary.content)
  record["padding"] = record["truncation"] = None
  token_of = {token["id"]: token["content"] for token in record["added_tokens"]}

  def token(value: int | None) -> str | None:
    # An id of ours: padding and 0 have changed places.
    return None if value is None else token_of.get({0: vocabulary.padding_id}.get(value, value))

  return ExportedTokenizer(
    content=json.dumps(record, ensure_ascii=False).encode(),
    padding=token_of[vocabulary.padding_id],
    padding_id=vocabulary.padding_id,
    unknown=token(vocabulary.unk_id),
    end=token(vocabulary.eos_id),
    marks_are_text=False,
  )


def _of_bytes(
  tokenizers: Any, vocabulary: vocabularies.ByteVocabulary
) -> tuple[Any, dict[int, str]]:
  """One token a byte, and the marks by id."""
  marks = {0: " <pad>", 1: " </s>", 2: " <unk>"}
  letters = _letters_of_bytes()
  ids = {token: i for i, token in marks.items()}
  ids |= {letter: byte + 3 for byte, letter in enumerate(letters)}
  made = tokenizers.Tokenizer(tokenizers.models.BPE(ids, [], unk_token=marks[2]))
  if vocabulary.lowercase:
    made.normalizer = tokenizers.normalizers.Sequence(_lowercase(tokenizers))
  made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
  made.decoder = tokenizers.decoders.ByteLevel()
  return made, marks


def _letters_of_bytes() -> list[str]:
  """The letter that stands for each byte: itself where it can be seen, else one from U+0100 on."""
  seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
  hidden = iter(range(0x100, 0x200))
  return [chr(byte) if byte in seen else chr(next(hidden)) for byte in range(0x100)]


def _of_sentencepiece(
  tokenizers: Any, vocabulary: vocabularies.SentencePieceVocabulary
) -> tuple[Any, dict[int, str]]:
  """The model's pieces, and its marks by id."""
  # Its classes are made at run time.
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
        f"the SentencePiece model {vocabulary.path} has {name} = {value}, which cannot be written "
        "as tokenizer.json"
      )
  own = [x.piece for x in model.pieces if x.type == kinds.USER_DEFINED]
  if own and trainer.model_type == trainer.BPE:
    raise errors.InputError(
      f"the SentencePiece model {vocabulary.path} is a BPE with symbols of its user ({own[0]}), "
      "which cannot be written as tokenizer.json"
    )
  spelled = (kinds.NORMAL, kinds.USER_DEFINED, kinds.BYTE)
  names = [x.piece if x.type in spelled else f" {x.piece}" for x in model.pieces]
  marks = {
    i: names[i] for i, x in enumerate(model.pieces) if x.type in (kinds.CONTROL, kinds.UNKNOWN)
  }
  is_normal = [x.type == kinds.NORMAL for x in model.pieces]
  # Of what cannot be written the lowest score of a normal piece is asked, so no other may be lower.
  lowest = min((x.score for x in model.pieces if x.type == kinds.NORMAL), default=0.0)
  scores = [x.score if x.type == kinds.NORMAL else lowest for x in model.pieces]
  unknown = next(i for i, x in enumerate(model.pieces) if x.type == kinds.UNKNOWN)
  if trainer.model_type == trainer.UNIGRAM:
    unigram = tokenizers.models.Unigram(
      list(zip(names, scores, strict=True)), unknown, trainer.byte_fallback
    )
    made = tokenizers.Tokenizer(unigram)
  else:
    made = tokenizers.Tokenizer(
      tokenizers.models.BPE(
        {name: i for i, name in enumerate(names)},
        _merges(names, scores, is_normal),
        unk_token=names[unknown],
        fuse_unk=True,
        byte_fallback=trainer.byte_fallback,
      )
    )
  steps = _lowercase(tokenizers) if vocabulary.lowercase else []
  steps += _spm_steps(tokenizers, normalizer, vocabulary)
  made.normalizer = tokenizers.normalizers.Sequence(steps)
  if not any(_SPACE in x.piece[1:] for x in model.pieces if x.type == kinds.NORMAL):
    # No piece goes over a space, so each word can be looked up by itself.
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split(_SPACE, "merged_with_next")
  made.decoder = tokenizers.decoders.Sequence(
    [
      tokenizers.decoders.Replace(_SPACE, " "),
      tokenizers.decoders.ByteFallback(),
      tokenizers.decoders.Fuse(),
      tokenizers.decoders.Strip(" ", 1, 0),
    ]
  )
  return made, marks


def _lowercase(tokenizers: Any) -> list[Any]:
  """`vocabularies.lowercase` as normalizers, which know one letter at a time but for Σ."""
  normalizers = tokenizers.normalizers
  return [normalizers.Replace(tokenizers.Regex(_FINAL_SIGMA), "ς"), normalizers.Lowercase()]


def _spm_steps(
  tokenizers: Any, spec: Any, vocabulary: vocabularies.SentencePieceVocabulary
) -> list[Any]:
  """What SentencePiece does to a text before it looks pieces up."""
  normalizers, pattern = tokenizers.normalizers, tokenizers.Regex
  steps = []
  if spec.precompiled_charsmap:
    mapped = normalizers.Precompiled(spec.precompiled_charsmap)
    steps += [normalizers.Replace(*pair) for pair in _unseen_signs(mapped, vocabulary)]
    steps.append(mapped)
  if spec.remove_extra_whitespaces:
    steps += [
      normalizers.Replace(pattern("^ +| +$"), ""),
      normalizers.Replace(pattern(" {2,}"), " "),
    ]
  if spec.add_dummy_prefix:
    steps.append(normalizers.Prepend(" "))
  return [*steps, normalizers.Replace(" ", _SPACE)]


def _unseen_signs(
  mapped: Any, vocabulary: vocabularies.SentencePieceVocabulary
) -> list[tuple[str, str]]:
  """Vowel signs typed as two that SentencePiece makes one of and `Precompiled` does not see.

  The latter looks at whole graphemes of at most five bytes; these are six, and all over Tamil.
  """
  import sentencepiece

  processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model_bytes)
  found = []
  for sign in map(chr, range(0x300, 0x10000)):
    parts = unicodedata.normalize("NFD", sign)
    if len(parts) == 1 or not unicodedata.category(sign).startswith("M"):
      continue
    # A letter in front keeps signs from being taken for the text's first.
    made = processor.normalize(f"x{parts}")
    if made.endswith(f"x{sign}") and mapped.normalize_str(parts) != sign:
      found.append((parts, sign))
  return sorted(found, key=lambda pair: -len(pair[0]))


def _merges(names: list[str], scores: list[float], normal: list[bool]) -> list[tuple[str, str]]:
  """Pairs of pieces that become a piece, those of the best piece first."""
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


def _import_tokenizers() -> Any:
  try:
    import tokenizers
  except ModuleNotFoundError:
    raise errors.InputError(
      "tokenizer.json is written by the package tokenizers, which is not installed: pip install "
      "'vmsst[hugging-face]'"
    ) from None
  return tokenizers
