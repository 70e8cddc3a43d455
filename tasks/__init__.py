"""SeqIO tasks: bitext sources, preprocessors, feature converter and evaluation tasks."""
