"""SeqIO tasks for training (`bitext`) and for evaluation during training (`evaluation`).

Examples have these features, all int32:

* training pairs: inputs [T], targets [T], input_language [1], target_language [1]
* evaluation texts: inputs [T], input_language [1]

Padding is 0. Language ids are the `index` of `vmsst.languages`. Importing a module of this package
reads no data.
"""
