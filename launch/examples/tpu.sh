#!/bin/bash
# Trains on a preemptible Cloud TPU and requests a new TPU after each preemption: bash tpu.sh. Run
# this script on a machine with gcloud. The script ends when training ends. Change the marked lines.
set -u
name=vmsst                                                  # change
zone=us-central2-b                                          # change
accelerator=v4-64                                           # change
version=tpu-ubuntu2204-base                                 # change
failures=3 # consecutive failures on a running TPU after which to give up
pause=30   # seconds

# All workers of the TPU run the script in $worker. It holds a lock while it trains. If the SSH
# connection breaks, the script may keep running. When the script starts again, it sends SIGTERM to
# the old copy and waits up to ten minutes, so that the old copy can write a checkpoint. After
# SIGTERM, the exit status of the script is 75.
worker=$(
  cat <<'END'
pip install -q "vmsst[train,tpu,gcs]" || exit
exec 9>>vmsst.lock
flock --nonblock 9 || kill -TERM "$(cat vmsst.pid)"
flock --timeout 600 9 || exit
echo $$ >vmsst.pid
stop() { stopped=1; kill -TERM "$pid" 2>/dev/null; }
stopped=
pid=
trap stop TERM
t5x train --gin_file=vmsst_24l.gin --gin_file=meshes/24l.gin \
  --gin.MODEL_DIR="'gs://bucket/runs/vmsst'" \
  --gin.OPUS_DATA_DIR="'gs://bucket/tfds'" \
  --gin.VOCABULARY_PATH="'gs://bucket/mt5/sentencepiece.model'" & # change
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
END
)

tpu() {
  gcloud compute tpus tpu-vm "$1" "$name" --zone="$zone" "${@:2}"
}
state() {
  tpu describe --format='value(state)' 2>/dev/null
}

failed=0
while true; do
  case "$(state)" in
    READY) ;;
    "")
      echo "$name: requesting a TPU"
      tpu create --accelerator-type="$accelerator" --version="$version" --spot || sleep "$pause"
      continue
      ;;
    PREEMPTED | TERMINATED)
      echo "$name: preempted; deleting the rest of it"
      tpu delete --quiet || sleep "$pause"
      continue
      ;;
    *)
      sleep "$pause"
      continue
      ;;
  esac
  tpu ssh --worker=all --command="$worker"
  status=$?
  [ "$status" -ne 0 ] || break
  sleep "$pause" # the state shows a preemption only after a delay
  if [ "$status" -eq 75 ] || [ "$(state)" != READY ]; then
    failed=0
    continue
  fi
  failed=$((failed + 1))
  echo "$name: the command failed with $status on a running TPU ($failed of $failures failures)"
  [ "$failed" -lt "$failures" ] || break
done
tpu delete --quiet # you are charged until the TPU is deleted
exit "$status"
