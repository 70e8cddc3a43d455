"""Networks of sentence encoders of all kinds, to be exported or run by other libraries."""

import dataclasses

import tiny_encoders

from vmsst.networks import bert, sentence_encoder

T5 = tiny_encoders.t5_config(
  vocab_size=3700, emb_dim=16, num_encoder_layers=2, relpos_buckets=8, relpos_max_distance=12
)
BERT = bert.BertConfig(
  vocab_size=400,
  emb_dim=16,
  num_heads=2,
  mlp_dim=80,  # its kernels are larger than a page
  num_layers=2,
  max_positions=30,
  initializer_std=0.3,
)


def encoder(config, width=16, **options):
  """Returns a network with vectors of `width` dimensions."""
  return sentence_encoder.SentenceEncoder(config, width, **options)


NETWORKS = {
  "t5": encoder(T5, 12),
  "t5 scanned": encoder(
    dataclasses.replace(T5, scan_layers=True, dtype="bfloat16"), 12, pooling="max", normalize=True
  ),
  "ems": encoder(BERT, head=False),
  "labse": encoder(
    dataclasses.replace(BERT, num_token_types=2, activation="gelu"),
    head=False,
    pooling="pooler",
    normalize=True,
  ),
  "e5": encoder(dataclasses.replace(BERT, position_offset=2, activation="relu"), head=False),
  "cls": encoder(dataclasses.replace(BERT, activation="relu", position_offset=1), 8, pooling="cls"),
}
