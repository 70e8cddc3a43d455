import dataclasses
import functools
import types

import jax
import line_files
import numpy as np
import pytest
import tiny_encoders

import vmsst
from vmsst import cli, errors, languages
from vmsst.data import vocabularies
from vmsst.encoder import loading, translation
from vmsst.models import vmsst as vmsst_models
from vmsst.networks import sentence_encoder
from vmsst.networks import vmsst as networks

VOCABULARY = vocabularies.ByteVocabulary()
# More rows than the vocabulary has pieces; the extra ones are never generated.
CONFIG = tiny_encoders.t5_config(vocab_size=270, emb_dim=32, head_dim=8, mlp_dim=32)
LENGTH = 6
EN, DE = (languages.language(code).index for code in ("en", "de"))


def make_translator(network, params):
  encoder = vmsst.Encoder(
    sentence_encoder.SentenceEncoder(network.config, network.latent_dim),
    params,
    VOCABULARY,
    max_length=LENGTH,
  )
  return translation.Translator(network, params, encoder)


# --------------------------------------------------------------------------------------------
# Against a loop over dense logits

VMSST = networks.VmsstNetwork(CONFIG, latent_dim=6)
NETWORKS = {
  "vmsst": VMSST,
  "bitranslation": networks.BitranslationNetwork(CONFIG, latent_dim=6),
  "factorized": dataclasses.replace(VMSST, factorized=True, parent=None),
}


@functools.partial(jax.jit, static_argnums=0)
def parts_of_logits(network, params, tokens_1T, language_1, sentence_1Z):
  def parts(net):
    hidden_1TD = net.decode(net.embed(tokens_1T), language_1, sentence_1Z)
    return net.project(hidden_1TD, sentence_1Z)

  return network.apply({"params": params}, method=parts)


def dense_logits(network, params, ids, language, sentence_Z):
  """Returns the logits of each place of one sentence in float64; any tokens follow `ids`."""
  tokens_1T = np.array([[*ids, *[3] * (LENGTH - len(ids))]])
  hidden_1TD, sentence_1Z, *kernels = parts_of_logits(
    network, params, tokens_1T, np.array([language]), sentence_Z[None]
  )
  parts = [hidden_1TD[0]]
  if sentence_1Z is not None:
    parts.append(np.tile(sentence_1Z, (LENGTH, 1)))
  kernel_PV = np.concatenate([kernel for kernel in kernels if kernel is not None])
  return np.float64(np.concatenate(parts, axis=1)) @ np.float64(kernel_PV)


def slowly(network, params, sentence_Z, language, length):
  """Returns the greedy tokens of one row, decoded alone."""
  tokens = []
  while len(tokens) < length and (not tokens or tokens[-1] != VOCABULARY.eos_id):
    logits_V = dense_logits(network, params, tokens, language, sentence_Z)[len(tokens)]
    tokens.append(1 + int(np.argmax(logits_V[1:259])))
  return tokens


def make_params(network, eos=25):
  """Returns parameters that prefer EOS and letters, but most padding and a row without a piece."""
  params = tiny_encoders.random_params(network)
  kernel_DV = np.array(params["logits_hidden"]["kernel"])
  kernel_DV[:, 1] *= eos
  kernel_DV[:, 100:126] *= 8
  kernel_DV[:, [0, 265]] *= 50
  return {**params, "logits_hidden": {"kernel": kernel_DV}}


@pytest.mark.parametrize("name", NETWORKS)
def test_greedy_tokens_are_those_of_a_loop_over_dense_logits(name):
  network, rng = NETWORKS[name], np.random.default_rng(0)
  params = make_params(network)
  sentence_NZ = np.float32(rng.normal(size=(7, network.sentence_dim)))
  language_N = np.resize(np.array([EN, DE], np.int32), 7)
  found = translation.generate_tokens(
    network, params, sentence_NZ, language_N, np.arange(7) != 6, length=6, eos_id=1, pieces=259
  )  # fmt: skip
  lengths = set()
  for row in range(6):
    expected = slowly(network, params, sentence_NZ[row], language_N[row], 6)
    lengths.add(len(expected))
    assert found[row].tolist() == expected + [0] * (6 - len(expected))
  assert not found[6].any()
  assert len(lengths) > 1  # some have ended before the last place


def log_likelihood(network, params, ids, language, sentence_Z):
  logits_TV = dense_logits(network, params, ids, language, sentence_Z)[: len(ids)]
  log_p_TV = logits_TV - np.log(np.sum(np.exp(logits_TV), axis=1, keepdims=True))
  return log_p_TV[np.arange(len(ids)), ids].sum()


@pytest.mark.parametrize("name", NETWORKS)
def test_likelihoods_of_a_pair_are_those_of_a_float64_loop(name):
  network = NETWORKS[name]
  params = tiny_encoders.random_params(network)
  translator = make_translator(network, params)
  sources, targets = ["ab", "", "abcdefgh", "xyz"], ["B", "AB", "A", "XYZ"]
  languages_in_name = {"en": EN, "de": DE}
  codes = ["de", "en", "de", "de"]
  cut = []
  find = functools.partial(
    translator.pair_log_likelihoods, sources, targets, languages=("en", codes), batch_size=3,
    on_cut=lambda *counts: cut.append(counts),
  )  # fmt: skip
  found_N2, per_token_N2 = find(), find(per_token=True)
  assert cut == [(1, 4, LENGTH)] * 2
  means = [translator.encoder.encode(side, on_cut=None) for side in (sources, targets)]
  zeros_G = np.zeros(network.sentence_dim - network.latent_dim, np.float32)
  for row, (source, target, code) in enumerate(zip(sources, targets, codes, strict=True)):
    for column, (text, language, mean_NS) in enumerate(
      ((target, languages_in_name[code], means[0]), (source, EN, means[1]))
    ):
      (ids,) = VOCABULARY.encode([text], LENGTH)
      sentence_Z = np.concatenate([zeros_G, mean_NS[row]])
      expected = log_likelihood(network, params, ids, language, sentence_Z)
      assert found_N2[row, column] == pytest.approx(expected, rel=1e-5)
      assert per_token_N2[row, column] == pytest.approx(expected / len(ids), rel=1e-5)


# --------------------------------------------------------------------------------------------
# A run

WORDS = ["ab", "", "xyz", "c", "some words"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """Returns the folder of a run."""
  model = vmsst_models.VmsstModel(
    network=VMSST, vocabulary=VOCABULARY, max_length=LENGTH, kl_anneal_steps=0
  )
  folder = tmp_path_factory.mktemp("run")
  return tiny_encoders.save_run(folder, model, make_params(VMSST, eos=1), languages=["deu", "eng"])


@pytest.fixture(scope="module")
def translator(run):
  return vmsst.load_translator(run)


def test_translations_are_the_greedy_tokens_of_the_mean_latent(translator):
  vectors_NS = translator.encoder.encode(WORDS, on_cut=None)
  codes, rows = ["de", "de", "eng", "en", "de"], [DE, DE, EN, EN, DE]

  def by_loop(length):
    sentences_NZ = np.pad(vectors_NS, ((0, 0), (VMSST.sentence_dim - VMSST.latent_dim, 0)))
    pairs = zip(sentences_NZ, rows, strict=True)
    return [VOCABULARY.decode(slowly(VMSST, make_params(VMSST, eos=1), *x, length)) for x in pairs]

  expected = by_loop(LENGTH)
  assert len(set(expected)) > 1
  assert translator.translate(WORDS, codes) == expected
  assert translator.translate(iter(WORDS), codes, batch_size=2) == expected
  assert translator.generate(vectors_NS, codes) == expected
  assert translator.generate(vectors_NS, codes, max_length=2) == by_loop(2)
  assert translator.generate(vectors_NS[:0], "de") == translator.translate([], "de") == []


def test_languages_that_were_not_trained_are_refused(translator):
  for code in ("swh_Latn", ["de", "fr"]):
    with pytest.raises(errors.InputError, match=r"not trained on .*; choose one of deu, eng"):
      translator.generate(np.zeros((2, 6)), code)
  groups = tuple({EN: 0, DE: 1}.get(row, -1) for row in range(languages.NUM_LANGUAGES))
  network = networks.VmsstNetwork(CONFIG, latent_dim=6, decoder_groups=groups)
  with pytest.raises(errors.InputError, match="not trained on the language 'fr'"):
    make_translator(network, {}).generate(np.ones((1, 6)), "fr")
  network = NETWORKS["bitranslation"]  # If the languages of training are unknown, all are accepted.
  unknown = make_translator(network, tiny_encoders.random_params(network))
  assert len(unknown.generate(np.ones((1, 6)), "sw")) == 1


def test_a_run_without_a_decoder_says_so(tmp_path):
  network = sentence_encoder.SentenceEncoder(CONFIG, latent_dim=6)
  tiny_encoders.save_run(tmp_path, tiny_encoders.model_of(network))
  assert vmsst.load(tmp_path).dimension == 6
  with pytest.raises(errors.InputError, match="has no decoder to generate text with"):
    vmsst.load_translator(tmp_path)


# --------------------------------------------------------------------------------------------
# The commands


def test_score_by_likelihood_writes_both_directions(run, translator, tmp_path, capsys):
  pairs = [(word, word.upper()) for word in WORDS]
  line_files.write_tsv(tmp_path / "pairs.tsv", pairs)
  command = ["score", str(run), str(tmp_path / "pairs.tsv"), "--by", "likelihood"]
  score = functools.partial(
    translator.pair_log_likelihoods, *zip(*pairs, strict=True), languages=("en", "de")
  )
  for options in ([], ["--per-token"]):
    assert cli.main([*command, "--languages", "en", "de", *options]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    both_N2 = score(per_token=bool(options))
    expected = np.concatenate([both_N2.mean(axis=1, keepdims=True), both_N2], axis=1)
    np.testing.assert_allclose(np.array(lines, float), expected, atol=2e-5)


def test_the_command_writes_a_line_for_each_line(tmp_path, capsys, monkeypatch):
  translator = types.SimpleNamespace(translate=lambda texts, _, **options: map(str.upper, texts))
  monkeypatch.setattr(loading, "load_translator", lambda path: translator)
  (tmp_path / "in.txt").write_bytes("abc\r\n\ncba\u2028\nbca".encode())
  command = ["translate", "run", "--to", "de", "--input", str(tmp_path / "in.txt"), "--output"]
  assert cli.main([*command, str(tmp_path / "out.txt")]) == 0
  assert (tmp_path / "out.txt").read_text() == "ABC\n\nCBA\nBCA\n"
  assert not any(capsys.readouterr())  # Progress is shown on terminals only.
  assert cli.main([*command, "-"]) == 0
  assert capsys.readouterr().out == "ABC\n\nCBA\nBCA\n"


def test_the_digest_depends_on_the_decoder():
  network = NETWORKS["bitranslation"]
  params = tiny_encoders.random_params(network)
  other = {**params, "logits_hidden": {"kernel": params["logits_hidden"]["kernel"] + 1}}
  digests = [make_translator(network, weights).digest for weights in (params, params, other)]
  assert digests[0] == digests[1] != digests[2]
