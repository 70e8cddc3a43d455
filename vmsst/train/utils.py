"""`t5x.utils` in the bundled runtime: the names that gin files and programs import."""

# ruff: noqa: F401

from vmsst.data.loader import get_batches as get_dataset
from vmsst.train.checkpoints import CheckpointConfig, RestoreCheckpointConfig, SaveCheckpointConfig
from vmsst.train.inference import get_infer_fn
from vmsst.train.input_pipeline import DatasetConfig, get_training_eval_datasets
from vmsst.train.optimizers import create_learning_rate_scheduler
from vmsst.train.train_state import TrainStateInitializer
