"""SeqIO tasks: bitext sources, preprocessors, feature converter and evaluation tasks.

Data examples, all int32: a pair of texts is {inputs [T], targets [T], input_language [1],
target_language [1]}; a text for evaluation is {inputs [T]}. Padding is 0; language ids are the
`index` in `vmsst.languages`. Importing a module of this package reads no data.
"""
