#!/bin/bash
# Trains on 4 nodes with 8 GPUs each, one process per GPU: sbatch slurm.sh. Change the marked lines.
#SBATCH --job-name=vmsst
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
# Sends SIGTERM 120 seconds before the time limit, so that the processes can write a checkpoint.
#SBATCH --signal=TERM@120

source "$HOME/venv/bin/activate" || exit                    # change
train=(
  t5x train --gin_file=vmsst_24l.gin --gin_file=meshes/24l.gin
  --gin.MODEL_DIR="'/scratch/vmsst'"                        # change
  --gin.OPUS_DATA_DIR="'/scratch/tfds'"                     # change
  --gin.VOCABULARY_PATH="'/scratch/sentencepiece.model'"    # change
)

# Each process exits with 75 after SIGTERM, and otherwise with the exit status of the training.
task='
stop() { stopped=1; kill -TERM "$pid" 2>/dev/null; }
stopped=
pid=
trap stop TERM
"$@" &
pid=$!
[ -z "$stopped" ] || kill -TERM "$pid" # SIGTERM came before pid was set
wait "$pid"
status=$?
while kill -0 "$pid" 2>/dev/null; do # SIGTERM ended wait early
  wait "$pid"
  status=$?
done
[ -z "$stopped" ] || status=75
exit "$status"
'
# When the first process ends, the others have 300 seconds left to write the checkpoint.
srun --kill-on-bad-exit=0 --wait=300 sh -c "$task" task "${train[@]}"
status=$?
if [ "$status" -eq 75 ]; then
  echo "Stopped; back to the queue."
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
