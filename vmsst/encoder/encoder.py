"""The class `Encoder`, which computes sentence vectors, similarities and margin scores."""

import collections
import concurrent.futures
import copy
import dataclasses
import functools
import hashlib
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import jax
import numpy as np
from flax import traverse_util

from vmsst import errors, storage
from vmsst.data import input_texts, vocabularies
from vmsst.data.input_texts import Texts
from vmsst.encoder import backends, compatibility, encoding
from vmsst.formats import encoder_json, sentence_transformers, tokenizers
from vmsst.io import progress_bar
from vmsst.networks import sentence_encoder

Language = str | Sequence[str] | None

# Window size: number of sentences that are tokenized and sorted together, so that each batch
# contains sentences of similar lengths. The next window is tokenized while the vectors of the
# current window are computed.
_WINDOW = 1 << 13


class Encoder(compatibility.Members):
  """Maps sentences to vectors.

  Tools that expect a `SentenceTransformer` also accept this class. You can set `max_length` (or its
  alias `max_seq_length`), `default_prompt_name` and `similarity_fn_name`. Other attributes are
  read-only.

  Use an encoder only in the process that loaded it, because JAX hangs in forked children. If you
  start other processes, load the encoder in each process.

  Attributes:
    network: Maps token ids to vectors.
    vocabulary: Maps sentences to token ids.
    max_length: Maximum tokens per sentence, EOS included. Longer texts are cut.
    dimension: Width of a sentence vector.
    languages: Codes of the training languages, or None if unknown.
    prompts: Prefixes by name, such as E5's prefixes for queries and passages.
    prompt: The prompt set by `with_prompt`, or None.
    path: Path to the parameters, or None.
    backend: Backend that computes the vectors, "jax" or "onnx".
    similarity_fn_name: How `similarity` compares vectors: "cosine", "dot", "euclidean" or
      "manhattan".
  """

  similarity_fn_name: encoder_json.Similarity = encoder_json.SIMILARITIES[0]

  def __init__(
    self,
    network: sentence_encoder.SentenceEncoder,
    params: Any,
    vocabulary: vocabularies.Vocabulary,
    *,
    max_length: int,
    languages: Sequence[str] | None = None,
    path: str | None = None,
    devices: Sequence[jax.Device] | None = None,
    backend: str = backends.JAX,
  ):
    """Creates an encoder from parameters in memory. Use `vmsst.load` to read one from a folder.

    Args:
      network: Maps token ids to vectors.
      params: The network's parameters.
      vocabulary: Maps sentences to token ids.
      max_length: Maximum tokens per sentence, EOS included.
      languages: Codes of the training languages.
      path: Path to the parameters.
      devices: Devices that share each batch (default: JAX's default device if one is set,
        otherwise all devices of this process).
      backend: "jax" or "onnx". ONNX Runtime computes in float32 on the CPU, and requires NumPy
        arrays or JAX arrays on the CPU as parameters.
    """
    self.vocabulary = self._base_vocabulary = vocabulary
    self.dimension = network.latent_dim
    self.languages = languages
    self.prompts: Mapping[str, str] = getattr(vocabulary, "prompts", {})
    self.prompt: str | None = None
    prefix = getattr(vocabulary, "prefix", "")
    names = (name for name, prompt in self.prompts.items() if prompt == prefix != "")
    self._default_prompt_name = next(names, None)
    self.path = path
    self.network = network
    self.max_length = max_length
    self.backend = backend
    self._backend = backends.new(backend, network, params, devices)

  def __setattr__(self, name: str, value: Any) -> None:
    name = name.replace("max_seq_length", "max_length")
    if name == "max_length":
      limit = getattr(self.network.config, "max_tokens", None)
      value = errors.as_integer(name, value, maximum=limit)
      for cached in ("tokenizer", "digest"):
        vars(self).pop(cached, None)
    elif name == "similarity_fn_name":
      errors.check_choice(name, value, encoder_json.SIMILARITIES)
    elif "_backend" in vars(self) and name != "default_prompt_name":
      raise AttributeError(f"{name} of an encoder cannot be set")
    super().__setattr__(name, value)

  def __repr__(self) -> str:
    numbers = sum(np.size(array) for array in jax.tree.leaves(self._backend.params))
    dtype = self.network.config.dtype if self.backend == backends.JAX else "float32"
    return (
      f"Encoder({self.path!r}, dimension={self.dimension}, parameters={numbers:,}, "
      f"max_length={self.max_length}, prompts={dict(self.prompts)}, backend={self.backend!r}, "
      f"dtype={dtype!r})"
    )

  @property
  def default_prompt_name(self) -> str | None:
    """Name of the prompt that `encode` prepends to every text, or None."""
    return self._default_prompt_name

  @default_prompt_name.setter
  def default_prompt_name(self, name: str | None) -> None:
    if name != self.default_prompt_name:
      vocabulary = self.with_prompt(self._prompt(None, None, name) or "").vocabulary
      vars(self).pop("digest", None)
      vars(self).update(vocabulary=vocabulary, _base_vocabulary=vocabulary, prompt=None)
      vars(self).update(_default_prompt_name=name)

  @functools.cached_property
  def digest(self) -> str:
    """Hexadecimal SHA-256 of the parameters, network, vocabulary and maximum length.

    Two encoders with the same digest and `prompt` compute the same vectors up to rounding error.
    """
    params = hashlib.sha256()
    for name, value in sorted(traverse_util.flatten_dict(self._backend.params, sep="/").items()):
      array = np.ascontiguousarray(value)
      params.update(f"{name} {array.dtype} {array.shape}".encode())
      params.update(array.view(np.uint8).data)
    settings = encoder_json.digest(self.network, self._base_vocabulary, self.max_length)
    return hashlib.sha256(f"{settings} {params.hexdigest()}".encode()).hexdigest()

  def with_prompt(self, prompt: str) -> "Encoder":
    """Returns a copy that prepends a prompt to every text; both encoders share the parameters.

    Raises:
      InputError: If the vocabulary does not support prefixes. Hugging Face tokenizers support
        prefixes.
    """
    vocabulary = self.vocabulary
    if not isinstance(vocabulary, tokenizers.HuggingFaceVocabulary):
      raise errors.InputError(f"{self.path} does not support prompts; omit the prompt")
    encoder = copy.copy(self)
    vars(encoder).update(vocabulary=vocabulary.with_prefix(prompt), prompt=prompt)
    return encoder

  def trim(self, texts: Texts) -> "Encoder":
    """Returns a copy that keeps only single characters and the tokens that occur in the texts.

    Most parameters in a multilingual encoder are token vectors. The sentence vectors of `texts`
    stay the same. The trimmed copy can still encode other texts, but may split them into more and
    shorter tokens.

    Args:
      texts: As in `encode`.

    Raises:
      InputError: If the tokenizer cannot be trimmed. BERT and XLM-R tokenizers can be trimmed.
    """
    if not isinstance(self.vocabulary, tokenizers.HuggingFaceVocabulary):
      raise errors.InputError(f"{self.path} has no tokenizer.json to trim; use it untrimmed")
    vocabulary, rows = tokenizers.trim(self.vocabulary, input_texts.as_list(texts))
    config = dataclasses.replace(self.network.config, vocab_size=len(rows))
    network = dataclasses.replace(self.network, config=config, parent=None)
    table_VD = np.asarray(self._backend.params["token_embedder"]["embedding"])[rows]
    params = {**self._backend.params, "token_embedder": {"embedding": table_VD}}
    return self._changed(network, params, vocabulary)

  def truncate(self, layers: int) -> "Encoder":
    """Returns a copy with the first layers only, to save time and memory.

    Truncation costs less accuracy if you first train the encoder with `vmsst.finetune` and the
    option `matryoshka_layers`.

    Args:
      layers: Number of layers to keep, fewer than the encoder has.

    Raises:
      InputError: If the encoder has too few layers or is not a transformer.
    """
    network, params = sentence_encoder.first_layers(self.network, self._backend.params, layers)
    return self._changed(network, params, self.vocabulary)

  def _changed(self, network: Any, params: Any, vocabulary: Any) -> "Encoder":
    options: dict[str, Any] = {"languages": self.languages, "backend": self.backend}
    encoder = Encoder(network, params, vocabulary, max_length=self.max_length, **options)
    encoder.similarity_fn_name = self.similarity_fn_name
    return encoder

  def save(self, folder: str | os.PathLike[str]) -> None:
    """Writes a new local folder that `vmsst.load` and sentence-transformers can open.

    Raises:
      InputError: If the folder exists, or if the format cannot represent the encoder; see
        `vmsst.formats.sentence_transformers`.
    """
    storage.check_local(folder, "a saved encoder (unlike an exported one)")
    target = pathlib.Path(folder).expanduser()
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
      raise errors.InputError(f"{target} exists; choose a new folder")
    assets = encoder_json.EncoderAssets(
      self.network,
      self.vocabulary,
      self.max_length,
      languages=None if self.languages is None else tuple(self.languages),
      similarity_fn_name=self.similarity_fn_name,
    )
    saved = encoder_json.SavedEncoder(str(self.path), assets, self.network, self._backend.params)
    sentence_transformers.write(saved, target)

  def encode(
    self,
    sentences: Texts,
    *,
    language: Language = None,
    prefix: str | None = None,
    prompt_name: str | None = None,
    batch_size: int = 128,
    truncate_dim: int | None = None,
    normalize: bool = False,
    precision: compatibility.Precision | None = "float32",
    progress: bool | None = None,
    on_cut: Callable[[int, int, int], None] | None = encoding.log_cut,
    prompt: str | None = None,
    normalize_embeddings: bool = False,
    show_progress_bar: bool | None = None,
    convert_to_numpy: bool = True,
    convert_to_tensor: bool = False,
    device: None = None,
    pool: None = None,
  ) -> Any:
    """Returns one vector for each sentence: float32 [N, D], in input order.

    A single string returns a single vector, [D], as in sentence-transformers.

    Sentences are sorted by length to save padding, and batches are padded to a few shapes to save
    compilation. A sentence with more than `max_length` tokens is cut. Apart from rounding error, a
    vector does not depend on the other inputs. An empty sentence is encoded as a single EOS token,
    or as a zero vector if the vocabulary has no EOS token. An unpaired surrogate is not valid UTF-8
    and is read as U+FFFD.

    Args:
      sentences: One string; a sequence or iterator of strings; an open file with one sentence per
        line; or a pathlib.Path (not a string) to such a file in UTF-8, plain or gzipped. Iterators
        and files are read completely before encoding starts.
      language: One language code (see `vmsst.languages`), or one code for each sentence. Required
        if the vocabulary splits text into words by language-specific rules, as in EMS; otherwise
        ignored.
      prefix: Text to prepend to every sentence, such as E5's "passage: " (default: the vocabulary's
        prefix, usually empty).
      prompt_name: Name of a prefix in `prompts`, to use instead of `prefix`. Every encoder accepts
        "query" and "document", the names of the prefixes that `encode_query` and `encode_document`
        prepend.
      batch_size: Sentences per batch, counted over all devices. Batches of sentences with more than
        64 tokens are smaller, to save memory.
      truncate_dim: Number of leading dimensions to return, for encoders trained with Matryoshka
        losses (default: all).
      normalize: Whether to scale vectors to length 1, so that dot products are cosines. Zero
        vectors stay zero. Vectors from some imported encoders (E5, LaBSE) always have length 1.
      precision: Data type of the vectors, as in sentence-transformers (default: "float32"). "int8"
        and "uint8" store one byte per dimension. The byte selects one of 256 levels between the
        dimension's lowest and highest value in these vectors; to set these two values yourself,
        call `vmsst.quantize`. "binary" and "ubinary" store one sign bit per dimension and pack 8
        bits into each int8 or uint8.
      progress: Whether to show a progress bar (default: on a terminal only).
      on_cut: Function to call once if texts were cut, with the number of cut texts, the total
        number of texts, and `max_length` (default: log one warning). Pass None to disable the
        warning.
      prompt: Alias of `prefix`, for sentence-transformers and its evaluators.
      normalize_embeddings: Alias of `normalize`.
      show_progress_bar: Alias of `progress`.
      convert_to_numpy: If False, return a list of torch tensors.
      convert_to_tensor: If True, return a torch tensor on the CPU.
      device: Not supported; set JAX_PLATFORMS or CUDA_VISIBLE_DEVICES before Python starts.
      pool: Not supported; to use several processes, run `vmsst embed`.

    Raises:
      TypeError: If `sentences` is a set, a dictionary or a data frame, or if an item is not a
        string (for example, None, bytes or a number).
      ValueError: If `batch_size` or `truncate_dim` is not an integer or is out of range, the
        languages and the sentences differ in number, `prompt_name` or `precision` is unknown, or
        more than one of `prefix`, `prompt` and `prompt_name` is passed.
      InputError: If the vocabulary requires a language but `language` is omitted, a required
        package (a word splitter or torch) is not installed, or a file cannot be read.
      RuntimeError: If this process is a forked child of the process that loaded the encoder.
    """
    # JAX's threads do not exist in a forked child, so computations would never finish.
    if os.getpid() != self._backend.process:
      raise RuntimeError(
        f"this encoder was loaded in process {self._backend.process}, and JAX hangs in a forked "
        "child; start processes with multiprocessing.get_context('spawn') or 'forkserver'"
      )
    errors.check(device is None, "device", device, "None (set JAX_PLATFORMS before Python starts)")
    errors.check(pool is None, "pool", pool, "None, or run `vmsst embed` for several processes")
    is_single = isinstance(sentences, str)
    if is_single:
      sentences, progress = [str(sentences)], False
    batch_size = errors.as_integer("batch_size", batch_size)
    precision = precision or "float32"
    errors.check_choice("precision", precision, get_args(compatibility.Precision))
    if truncate_dim is not None:
      truncate_dim = errors.as_integer("truncate_dim", truncate_dim, maximum=self.dimension)
    prefix = self._prompt(prefix, prompt, prompt_name)
    progress = show_progress_bar if progress is None else progress
    texts = input_texts.as_list(sentences)
    if not (language is None or isinstance(language, str)):
      language = input_texts.languages(language, len(texts))
    vectors_ND = np.empty((len(texts), self.dimension), np.float32)
    window = max(batch_size, _WINDOW // batch_size * batch_size)
    bar = progress_bar.Bar(
      total=len(texts), unit=" sentences", disable=None if progress is None else not progress
    )

    def tokenize(start: int) -> tuple[list[list[int]], list[int]]:
      rows = slice(start, start + window)
      codes = language if language is None or isinstance(language, str) else language[rows]
      return self._tokenize(texts[rows], codes, prefix)

    num_cut, starts = 0, range(0, len(texts), window)
    with bar, concurrent.futures.ThreadPoolExecutor(1) as thread:
      pending = [thread.submit(tokenize, start) for start in starts[:1]]
      for number, start in enumerate(starts):
        ids, long = pending.pop().result()
        pending = [thread.submit(tokenize, x) for x in starts[number + 1 : number + 2]]
        num_cut += len(long)
        vectors_ND[start : start + window] = self.encode_ids(
          ids, batch_size=batch_size, on_batch=bar.update
        )
    if num_cut and on_cut is not None:
      on_cut(num_cut, len(texts), self.max_length)
    vectors_ND = vectors_ND[:, :truncate_dim]
    if normalize or normalize_embeddings:
      norm_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
      vectors_ND /= np.where(norm_N1 > 0, norm_N1, 1.0)
    result = vectors_ND
    if precision != "float32":
      result = compatibility.quantize(vectors_ND, precision)
    if convert_to_tensor or not convert_to_numpy:
      result = compatibility.tensor(result)
    if is_single:
      return result[0]
    return result if convert_to_tensor or convert_to_numpy else list(result)

  def encode_ids(
    self,
    ids: Sequence[Sequence[int]],
    *,
    batch_size: int = 128,
    on_batch: Callable[[int], object] = lambda rows: None,
  ) -> np.ndarray:
    """Returns the vectors of tokenized texts, float32 [N, D].

    Args:
      ids: Token ids of N texts, including special tokens; at most `max_length` per text.
      batch_size: Texts per batch.
      on_batch: Called after each batch with the number of texts in the batch.
    """
    vectors_ND = np.empty((len(ids), self.dimension), np.float32)
    # The backend computes several batches at once, so start several before waiting for a result.
    batches = collections.deque(self._backend.batches(ids, batch_size, self.max_length))
    in_flight: collections.deque[tuple[np.ndarray, Callable[[], np.ndarray]]]
    in_flight, alone = collections.deque(), len(batches) == 1
    while batches or in_flight:
      if batches and len(in_flight) <= self._backend.in_flight:
        index_B, tokens_RT = batches.popleft()
        in_flight.append((index_B, self._backend.start(tokens_RT, alone=alone)))
      else:
        index_B, vectors = in_flight.popleft()
        vectors_ND[index_B] = vectors()[: len(index_B)]
        on_batch(len(index_B))
    return vectors_ND

  def encode_query(self, sentences: Texts, **options: Any) -> Any:
    """Returns the vectors of queries. Calls `encode`, with the prompt "query" if there is one."""
    return self._encode_as("query", sentences, **options)

  def encode_document(self, sentences: Texts, **options: Any) -> Any:
    """Returns the vectors of documents to search.

    Calls `encode` with the first nonempty prompt among "document", "passage" and "corpus".
    """
    return self._encode_as("document", sentences, **options)

  def _encode_as(self, role: vocabularies.Role, sentences: Texts, **options: Any) -> Any:
    if all(options.get(name) is None for name in ("prefix", "prompt", "prompt_name")):
      options["prefix"] = tokenizers.role_prompt(self.prompts, role)
    return self.encode(sentences, **options)

  def _prompt(self, prefix: str | None, prompt: str | None, prompt_name: str | None) -> str | None:
    """Returns the prefix selected by the arguments of `encode`. At most one argument can be set."""
    prefixes = {"prefix": prefix, "prompt": prompt, "prompt_name": prompt_name}
    prefixes = {argument: value for argument, value in prefixes.items() if value is not None}
    if len(prefixes) > 1:
      raise ValueError(f"{' and '.join(prefixes)} are both set; pass only one of them")
    if prompt_name is None:
      return next(iter(prefixes.values()), None)
    default = getattr(self.vocabulary, "prefix", "")
    prompts = tokenizers.method_prompts(default, self.prompts) | dict(self.prompts)
    if prompt_name not in prompts:
      choices = ", ".join(map(repr, prompts))
      raise ValueError(f"prompt_name is {prompt_name!r}; choose one of {choices}")
    return prompts[prompt_name]

  def _tokenize(
    self, texts: list[str], language: Language, prefix: str | None
  ) -> tuple[list[list[int]], list[int]]:
    """Returns token ids, EOS included, and the indices of texts that were cut."""
    vocabulary = self.vocabulary
    if prefix is not None and isinstance(vocabulary, tokenizers.HuggingFaceVocabulary):
      vocabulary = vocabulary.with_prefix(prefix)
    elif prefix:
      texts = [prefix + text for text in texts]
    # Read one token more than the limit, to detect texts that are too long.
    ids = vocabulary.encode(texts, self.max_length + 1, language)
    long = [index for index, row in enumerate(ids) if len(row) > self.max_length]
    for index in long:
      ids[index] = vocabularies.cut_with_eos(ids[index], self.max_length, vocabulary.eos_id)
    return ids, long
