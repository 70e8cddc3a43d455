#!/bin/bash
# Trains on 4 nodes of 8 GPUs, one process per GPU: sbatch slurm.sh. Change the marked lines.
#SBATCH --job-name=vmsst
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
# SIGTERM 120 seconds before the time limit; processes then write a checkpoint.
#SBATCH --signal=TERM@120

source "$HOME/venv/bin/activate" || exit                    # change
train=(
  t5x train --gin_file=vmsst_24l.gin --gin_file=meshes/24l.gin
  --gin.MODEL_DIR="'/scratch/vmsst'"                        # change
  --gin.OPUS_DATA_DIR="'/scratch/tfds'"                     # change
  --gin.VOCABULARY_PATH="'/scratch/sentencepiece.model'"    # change
)

# The exit status of a process is 75 after SIGTERM, otherwise the status of the training.
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
# The first process that ends leaves the others 300 seconds to write the checkpoint.
srun --kill-on-bad-exit=0 --wait=300 sh -c "$task" task "${train[@]}"
status=$?
if [ "$status" -eq 75 ]; then
  echo "Stopped; back to the queue."
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
