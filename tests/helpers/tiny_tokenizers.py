"""Tokenizers of Hugging Face's and of SentencePiece's kinds, trained on a few sentences."""

import io

import numpy as np
import tokenizers

SENTENCES = [
  "Hello, world! How are you today?",
  "Wie geht es dir heute, Welt?",
  "Привет, мир. Как дела сегодня?",
  "世界 你好,こんにちは。",
  "मौसम आज अच्छा है।",
]


def sentencepiece_model(sentences, **options):
  """Returns a SentencePiece model of about 40 pieces with the marks of mT5, by default."""
  import sentencepiece

  stream = io.BytesIO()
  given = {"vocab_size": 40, "hard_vocab_limit": False, "pad_id": 0, "eos_id": 1, "unk_id": 2}
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter([*sentences] * 9),
    model_writer=stream,
    minloglevel=2,
    **{**given, "bos_id": -1, **options},
  )
  return stream.getvalue()


def save(folder, sentences=SENTENCES):
  """Returns files by kind: "bert" (WordPiece, pads with 0) and "xlmr" (Unigram, pads with 1)."""
  bert = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
  bert.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=False)
  bert.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
  bert.decoder = tokenizers.decoders.WordPiece()
  marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
  trainer = tokenizers.trainers.WordPieceTrainer(
    vocab_size=150, special_tokens=marks, show_progress=False
  )
  xlmr = tokenizers.Tokenizer(tokenizers.models.Unigram())
  xlmr.normalizer = tokenizers.normalizers.NFKC()
  xlmr.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
  xlmr.decoder = tokenizers.decoders.Metaspace()
  marks = ["<s>", "<pad>", "</s>", "<unk>"]
  xlmr_trainer = tokenizers.trainers.UnigramTrainer(
    vocab_size=120, special_tokens=marks, unk_token="<unk>", show_progress=False
  )
  files = {}
  for kind, tokenizer, its_trainer, ends in (
    ("bert", bert, trainer, ("[CLS]", "[SEP]")),
    ("xlmr", xlmr, xlmr_trainer, ("<s>", "</s>")),
  ):
    tokenizer.train_from_iterator([*sentences] * 4, its_trainer)
    ids = [(mark, tokenizer.token_to_id(mark)) for mark in ends]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
      single=f"{ends[0]} $A {ends[1]}", special_tokens=ids
    )
    # As the files of released models do; the library pads and cuts by itself.
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=7)
    files[kind] = folder / f"{kind}.json"
    tokenizer.save(str(files[kind]))
  return files


def swap_padding(ids, padding_id):
  """Returns ids with 0 and `padding_id` swapped, as this library's vocabularies have them."""
  return np.where(ids == 0, padding_id, np.where(ids == padding_id, 0, ids)).astype(ids.dtype)
