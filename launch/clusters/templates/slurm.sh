# A process that gets SIGTERM writes a checkpoint and exits with $stopped, which distinguishes it
# from a finished one. The first process that ends leaves the others 300 seconds to do so.
srun --kill-on-bad-exit=0 --wait=300 sh -c "$task" task "$@"
status=$?
if [ "$status" -eq "$stopped" ]; then
  echo "Stopped; back to the queue."
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
