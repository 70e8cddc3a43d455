# Runs its arguments; exits with 75 if it got SIGTERM, else with their status.
stop() {
  stopped=1
  kill -TERM "$pid" 2>/dev/null
}
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
