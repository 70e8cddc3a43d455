"""Tests beam search against a search in Python over the likelihoods of all sentences."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
import tiny_encoders

from vmsst.inference import beam_search, likelihood
from vmsst.networks import vmsst as networks

EOS, WORDS, LENGTH, ROWS = 1, (2, 3, 4), 4, 3
# Id 5 is a row of the table without a piece.
CONFIG = tiny_encoders.t5_config(vocab_size=6)
NETWORK = networks.VmsstNetwork(CONFIG, latent_dim=4, num_languages=3)
LANGUAGES_B = np.array([1, 2, 1], np.int32)

UNFINISHED = [x for n in range(1, LENGTH + 1) for x in itertools.product(WORDS, repeat=n)]
FINISHED = [(*x, EOS) for x in [(), *UNFINISHED] if len(x) < LENGTH]


@pytest.fixture(scope="module")
def params():
  found = tiny_encoders.random_params(NETWORK, 1)
  # Ids that are never generated are likely.
  kernel_DV = np.array(found["logits_hidden"]["kernel"])
  kernel_DV[:, [0, 5]] *= 3
  return {**found, "logits_hidden": {"kernel": kernel_DV}}


@pytest.fixture(scope="module")
def sentence_BZ():
  return np.random.default_rng(0).normal(size=(ROWS, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def log_p(params, sentence_BZ):
  """Returns log p of each beginning of a sentence and each sentence, for each row."""
  every = [*UNFINISHED, *FINISHED]
  tokens_MT = np.array([[*x, *[0] * (LENGTH - len(x))] for x in every], np.int32)
  found = []
  for row in range(ROWS):
    of_row = (np.repeat(x[row : row + 1], len(every), axis=0) for x in (LANGUAGES_B, sentence_BZ))
    values = likelihood.log_likelihoods(NETWORK, params, tokens_MT, *of_row)
    found.append({(): 0.0} | dict(zip(every, np.asarray(values).tolist(), strict=True)))
  return found


def score(log_p, tokens, length_penalty):
  return log_p[tokens] / ((5 + len(tokens)) / 6) ** length_penalty


def slow_search(log_p, beams, length_penalty):
  """Returns the best sentence of a beam search that never ends early."""
  alive, finished = [()], []
  for _ in range(LENGTH):
    finished += [(*x, EOS) for x in alive]
    alive = [(*x, word) for x in alive for word in WORDS]
    alive = sorted(alive, key=lambda x: -log_p[x])[:beams]
  return max(finished, key=lambda x: score(log_p, x, length_penalty))


def search(params, sentence_BZ, beams, length_penalty, network=NETWORK, eos_id=EOS, length=LENGTH):
  found_BT = beam_search.search_tokens(
    network, params, sentence_BZ, LANGUAGES_B, np.array([True, True, False]), length_penalty,
    length=length, eos_id=eos_id, pieces=5, beams=beams,
  )  # fmt: skip
  assert not np.asarray(found_BT)[2].any()
  return [tuple(filter(None, row)) for row in np.asarray(found_BT)[:2].tolist()]


def test_a_wide_beam_finds_the_best_of_all_sentences(params, sentence_BZ, log_p):
  lengths = set()
  for length_penalty in (0.0, 0.6, 4.0):
    expected = [
      max(FINISHED, key=lambda x, row=row: score(log_p[row], x, length_penalty)) for row in range(2)
    ]
    assert search(params, sentence_BZ, len(WORDS) ** (LENGTH - 1), length_penalty) == expected
    lengths |= {len(x) for x in expected}
  assert len(lengths) > 1  # the penalty matters


@pytest.mark.parametrize("beams", [1, 2])
def test_a_narrow_beam_drops_what_a_loop_drops(params, sentence_BZ, log_p, beams):
  for length_penalty in (0.0, 4.0):
    expected = [slow_search(log_p[row], beams, length_penalty) for row in range(2)]
    assert search(params, sentence_BZ, beams, length_penalty) == expected


def test_without_eos_the_likeliest_beginning_is_cut(params, sentence_BZ, log_p):
  found = search(params, sentence_BZ, 27, 0.6, eos_id=None, length=1)
  for row, tokens in enumerate(found):
    single = {x: y for x, y in log_p[row].items() if len(x) == 1}
    assert tokens == max(single, key=single.get)


@pytest.mark.slow
def test_scanned_layers_and_groups_of_decoders_give_the_same(params, sentence_BZ):
  deep = dataclasses.replace(NETWORK, num_decoder_layers=2, parent=None)
  own = tiny_encoders.random_params(deep, 3)
  layers = [own["decoder"][f"layers_{i}"] for i in range(2)]
  scanned = {x: y for x, y in own["decoder"].items() if not x.startswith("layers_")}
  scanned["layers"] = jax.tree.map(lambda *x: np.stack(x), *layers)
  stacked = {**own, "decoder": scanned}
  config = dataclasses.replace(CONFIG, scan_layers=True)
  as_scan = dataclasses.replace(deep, config=config, parent=None)
  groups = dataclasses.replace(deep, decoder_groups=(-1, 0, 1), parent=None)
  copies = {x: y for x, y in own.items() if x != "decoder"}
  copies |= {"decoders_0": own["decoder"], "decoders_1": own["decoder"]}
  expected = search(own, sentence_BZ, 2, 0.6, deep)
  assert search(stacked, sentence_BZ, 2, 0.6, as_scan) == expected
  assert search(copies, sentence_BZ, 2, 0.6, groups) == expected
