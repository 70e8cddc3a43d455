# The running command holds the lock. If the connection broke, it may still run: stop it first and
# wait for its checkpoint.
cd ~ || exit
flock --nonblock .vmsst-launch.lock true || kill -TERM "$(cat .vmsst-launch.pid)"
exec flock --timeout 600 .vmsst-launch.lock sh -c "$task" task "$@"
