"""Runs a command on a cluster: Cloud TPU, SLURM or Kubernetes.

Each module turns the frozen description of a job into the text to run (a shell script, a batch
script or a manifest), from a template in `templates/`. `vmsst launch` prints the text or passes it
to the cluster's own client. JAX finds the processes of a run: through SLURM's variables, the TPU's
metadata, or the variables that the manifest sets.
"""
