import dataclasses
import functools
import itertools

import jax
import line_files
import numpy as np
import optax
import pytest
import tiny_encoders

import vmsst
from vmsst import cli, errors, languages
from vmsst.data import vocabularies
from vmsst.encoder import decoding, loading, translation
from vmsst.formats import encoder_json
from vmsst.models import vmsst as vmsst_models
from vmsst.networks import sentence_encoder
from vmsst.networks import vmsst as networks

VOCABULARY = vocabularies.ByteVocabulary()
# More rows than the vocabulary has pieces; the extra ones are never generated.
CONFIG = tiny_encoders.t5_config(vocab_size=270, emb_dim=32, head_dim=8, mlp_dim=32)
LENGTH = 5
EN, DE = (languages.language(code).index for code in ("en", "de"))


def make_translator(network, params, vocabulary=VOCABULARY, max_length=LENGTH):
  encoder = vmsst.Encoder(
    sentence_encoder.SentenceEncoder(network.config, network.latent_dim),
    params,
    vocabulary,
    max_length=max_length,
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


def slowly(network, params, sentence_Z, language, length):
  """Returns the greedy tokens of one row, decoded alone, with dense logits in NumPy."""
  tokens = []
  while len(tokens) < length and (not tokens or tokens[-1] != VOCABULARY.eos_id):
    # Any tokens at later positions.
    tokens_1T = np.array([[*tokens, *[3] * (length - len(tokens))]])
    hidden_1TD, sentence_1Z, *kernels = parts_of_logits(
      network, params, tokens_1T, np.array([language]), sentence_Z[None]
    )
    used = [hidden_1TD[0, len(tokens)], *([] if sentence_1Z is None else [sentence_1Z[0]])]
    kernels = [np.asarray(kernel) for kernel in kernels if kernel is not None]
    logits_V = np.concatenate(used) @ np.concatenate(kernels)
    tokens.append(1 + int(np.argmax(logits_V[1:259])))
  return tokens


@pytest.mark.parametrize("name", NETWORKS)
def test_greedy_tokens_are_those_of_a_loop_over_dense_logits(name):
  network, rng = NETWORKS[name], np.random.default_rng(0)
  params = tiny_encoders.random_params(network)
  # Likely: EOS. More likely: padding, and a row without a piece.
  kernel_DV = np.array(params["logits_hidden"]["kernel"])
  kernel_DV[:, 1] *= 10
  kernel_DV[:, [0, 265]] *= 50
  params = {**params, "logits_hidden": {"kernel": kernel_DV}}
  sentence_NZ = np.float32(rng.normal(size=(7, network.sentence_dim)))
  language_N = np.resize(np.array([EN, DE], np.int32), 7)
  found = decoding.generate_tokens(
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
  """Returns log p of one sentence, token by token over dense logits in float64."""
  tokens_1T = np.array([[*ids, *[3] * (6 - len(ids))]])  # any tokens at later positions
  hidden_1TD, sentence_1Z, *kernels = parts_of_logits(
    network, params, tokens_1T, np.array([language]), sentence_Z[None]
  )
  kernel_PV = np.float64(np.concatenate([kernel for kernel in kernels if kernel is not None]))
  total = 0.0
  for place, token in enumerate(ids):
    used = [hidden_1TD[0, place], *([] if sentence_1Z is None else [sentence_1Z[0]])]
    logits_V = np.float64(np.concatenate(used)) @ kernel_PV
    total += logits_V[token] - np.log(np.sum(np.exp(logits_V)))
  return total


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
# A trained decoder

WORDS = ["".join(letters) for letters in itertools.product("abc", repeat=3)]


def pairs():
  """Returns a batch of words, lowercase in English and uppercase in German."""
  tokens = [VOCABULARY.encode(x, LENGTH) for x in (WORDS, [word.upper() for word in WORDS])]
  inputs_BT, targets_BT = (np.pad(x, ((0, 0), (0, 1))).astype(np.int32) for x in tokens)
  return {
    "inputs": inputs_BT,
    "targets": targets_BT,
    "input_language": np.full((len(WORDS), 1), EN, np.int32),
    "target_language": np.full((len(WORDS), 1), DE, np.int32),
  }


def train(model, steps):
  batch, schedule = pairs(), optax.cosine_decay_schedule(1e-2, steps)
  optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))

  @jax.jit
  def step(params, state, rng):
    gradient = jax.grad(lambda p: model.loss_fn(p, batch, rng)[0])(params)
    updates, state = optimizer.update(gradient, state)
    return optax.apply_updates(params, updates), state

  params = tiny_encoders.random_params(model.network)
  state = optimizer.init(params)
  for i in range(steps):
    params, state = step(params, state, jax.random.key(i))
  return params


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """Returns the folder of a finished run."""
  network = networks.VmsstNetwork(CONFIG, latent_dim=16)
  model = vmsst_models.VmsstModel(
    network=network, vocabulary=VOCABULARY, max_length=LENGTH, kl_anneal_steps=0
  )
  folder = tmp_path_factory.mktemp("run")
  encoder_json.save_encoder_assets(model, folder, ["deu", "eng"])
  tiny_encoders.save_training_checkpoint(folder, 1, train(model, 300))
  return folder


@pytest.fixture(scope="module")
def translator(run):
  return vmsst.load_translator(run)


def test_a_trained_run_translates_both_ways(translator):
  capitals = [word.upper() for word in WORDS]
  assert translator.translate(WORDS, "de") == capitals
  assert translator.translate(iter(capitals), "eng") == WORDS
  both = translator.translate(WORDS, ["de"] * 20 + ["en"] * 7)
  assert both == [*capitals[:20], *WORDS[20:]]
  assert translator.translate(["abc"], "de", max_length=2) == ["AB"]
  vectors_NS = translator.encoder.encode(WORDS)
  assert translator.generate(vectors_NS, "de") == capitals  # they are all that it needs
  assert translator.generate(vectors_NS[:0], "de") == translator.translate([], "de") == []


def test_batches_change_nothing(translator):
  vectors_NS = 0.3 * translator.encoder.encode(WORDS)
  found = translator.generate(vectors_NS, "de", batch_size=8)
  assert found == translator.generate(vectors_NS, "de")


def test_a_translation_is_likelier_than_another_word(translator):
  capitals = [word.upper() for word in WORDS]
  score = functools.partial(translator.pair_log_likelihoods, WORDS, languages=("en", "de"))
  right_N2, wrong_N2 = score(capitals), score(capitals[1:] + capitals[:1])
  assert (right_N2 <= 0).all()
  assert (right_N2 > wrong_N2 + 1).all()
  assert translator.pair_log_likelihoods([], [], languages=("en", "de")).shape == (0, 2)


def test_languages_that_were_not_trained_are_refused(translator):
  for code in ("swh_Latn", ["de", "fr"]):
    with pytest.raises(errors.InputError, match=r"not trained on .*; choose one of deu, eng"):
      translator.generate(np.zeros((2, 16)), code)
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


@pytest.fixture
def loaded(translator, monkeypatch):
  """Keeps the translator between commands."""
  monkeypatch.setattr(loading, "load_translator", lambda path: translator)


@pytest.mark.usefixtures("loaded")
def test_score_by_likelihood_writes_both_directions(run, translator, tmp_path, capsys):
  pairs = [(word, word.upper()) for word in WORDS[:5]]
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


def test_the_command_writes_a_line_for_each_line(run, tmp_path, capsys):
  (tmp_path / "in.txt").write_bytes("abc\r\n\ncba\u2028\nbca".encode())
  arguments = ["translate", str(run), "--to", "de"]
  files = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.txt")]
  assert cli.main([*arguments, *files]) == 0
  lines = (tmp_path / "out.txt").read_text().split("\n")
  assert (lines[0], lines[3:]) == ("ABC", ["BCA", ""])
  assert len(lines) == 5
  assert not any(capsys.readouterr())  # Progress is shown on terminals only.
  assert cli.main([*arguments, *files, "--output", "-"]) == 0
  assert capsys.readouterr().out == "\n".join(lines)


def test_the_digest_depends_on_the_decoder():
  network = NETWORKS["bitranslation"]
  params = tiny_encoders.random_params(network)
  other = {**params, "logits_hidden": {"kernel": params["logits_hidden"]["kernel"] + 1}}
  digests = [make_translator(network, weights).digest for weights in (params, params, other)]
  assert digests[0] == digests[1] != digests[2]
