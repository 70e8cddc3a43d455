"""Runs a command on a cluster: Cloud TPU, SLURM, Kubernetes.

Each module makes the text of what will run (a shell script, a batch script, a manifest) from a
frozen description of the job, without looking at the machine it is on; `vmsst launch` shows it or
hands it to the cluster's own client. How the processes find each other is JAX's: from SLURM's
variables, from the TPU's metadata, and in a JobSet from the variables that the manifest sets.
"""
