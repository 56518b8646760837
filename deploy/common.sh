# shellcheck shell=bash
# What two_gpus.sh and two_nodes.sh share. Sourced, never run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# The environment that `make` built, else whatever is on PATH.
[[ -d $root/.venv/bin ]] && PATH=$root/.venv/bin:$PATH

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

die() {
  say "$*"
  exit 1
}

# The comment block at the top of the calling script is its help.
show_help() { awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0"; }

need() {
  local tool
  for tool in "$@"; do
    command -v "$tool" >/dev/null || die "$tool is not on PATH; run make, or pip install 'specgate[ray]'"
  done
}

# Whoever reaches a Ray cluster's ports runs code on it. A token keeps others on the same network out; it does not
# encrypt, so the network has to be private all the same.
require_token() {
  export RAY_AUTH_MODE=token
  [[ -n ${RAY_AUTH_TOKEN:-} || -s ${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token} ]]
}

make_token() {
  require_token && return
  local file=${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}
  mkdir -p "$(dirname "$file")"
  (umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$file")
  say "wrote a new Ray token to $file"
}

# start_ray LOG FLAGS...: one Ray node that ends with the process $ray_pid. `ray stop` would end every Ray of this
# host, also somebody else's. In a session of its own, because Ctrl-C must not end Ray while the APIs still drain.
start_ray() {
  local log=$1
  shift
  RAY_USAGE_STATS_ENABLED=0 setsid ray start --block --log-style record --log-color false "$@" >"$log" 2>&1 &
  # shellcheck disable=SC2034 # the caller reads it
  ray_pid=$!
}

# wait_for_ray LOG PID: until the node says that it runs.
wait_for_ray() {
  local log=$1 pid=$2 tries
  for ((tries = 0; tries < 240; tries++)); do
    grep -q 'Ray runtime started' "$log" && return
    kill -0 "$pid" 2>/dev/null || die "ray start failed: $(tail -n 5 "$log")"
    sleep 0.5
  done
  die "Ray did not start within two minutes; see $log"
}

# end PID: ask it to end, and wait until it has. Ray drains its node first; serve lets running requests end.
end() {
  kill "$1" 2>/dev/null || return 0
  while kill -0 "$1" 2>/dev/null; do sleep 0.2; done
}
