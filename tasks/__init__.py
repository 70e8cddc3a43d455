"""SeqIO tasks for training (`bitext`) and for evaluation during training (`evaluation`).

Examples have at least these features, all int32:

* training pairs: inputs [T], targets [T], input_language [1], target_language [1]
* evaluation texts: inputs [T], input_language [1], row []

Texts are padded with 0. Language ids are the `index` values in `vmsst.languages`. Importing the
modules `bitext` and `evaluation` reads no data.
"""
