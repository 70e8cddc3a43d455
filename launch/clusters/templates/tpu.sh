set -u
failed=0
while true; do
  case "$("${describe[@]}" 2>/dev/null)" in
    READY | ACTIVE) ;;
    "")
      echo "$name: asking for a TPU"
      "${create[@]}" || sleep "$pause"
      continue
      ;;
    PREEMPTED | TERMINATED | SUSPENDED | FAILED)
      echo "$name: preempted; deleting the rest of it"
      "${delete[@]}" || sleep "$pause"
      continue
      ;;
    *)
      sleep "$pause"
      continue
      ;;
  esac
  "${ssh[@]}" --command="$command"
  status=$?
  if [ "$status" -eq 0 ]; then
    echo "$name: finished"
    break
  fi
  sleep "$pause" # a preemption shows in the state a little later
  [ "$status" -ne "$stopped" ] || continue
  case "$("${describe[@]}" 2>/dev/null)" in
    READY | ACTIVE)
      failed=$((failed + 1))
      echo "$name: the command failed with $status on a running TPU ($failed of $failures failures)"
      [ "$failed" -lt "$failures" ] || break
      ;;
    *) failed=0 ;;
  esac
done
if [ -n "$delete_when_done" ]; then
  "${delete[@]}"
else
  echo "$name is still there; to delete it: ${delete[*]}"
fi
exit "$status"
