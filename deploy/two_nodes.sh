#!/usr/bin/env bash
# Two hosts in one private network: the verifier on one, the drafter on the other, by the labels of their Ray nodes.
#
#   deploy/two_nodes.sh head [--ip IP] [RAY FLAGS...]      on the verifier's host; the APIs are here too
#   deploy/two_nodes.sh worker HEAD_IP [--ip IP] [RAY FLAGS...]      on the drafter's host
#   deploy/two_nodes.sh serve [SERVE FLAGS...]             on the first host, when both are up; Ctrl-C drains
#   deploy/two_nodes.sh stop                               on either host: end the Ray node that was started there
#   deploy/two_nodes.sh local                              all of it on this host, a network namespace for each node
#
# HEAD_IP and --ip are addresses in the private network; without --ip Ray picks the one that routes outwards.
# `head` makes a token for Ray, ~/.ray/auth_token by default; it must be on the second host before `worker`.
# `serve` reads two_nodes.yaml beside this file; its flags override it:
#   deploy/two_nodes.sh serve --set verifier.model=/models/target --set drafter.model=/models/draft
# `local` needs root (ip netns) and curl. It streams one completion, shows what runs where, and cleans up.
#
# RAY_PORT (6379) is the head's port, SPECGATE_STATE (~/.specgate) where logs and process ids are kept.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ray_port=${RAY_PORT:-6379}
state=${SPECGATE_STATE:-$HOME/.specgate}

# start_node RAY FLAGS...: in the background; it ends by `stop`.
start_node() {
  [[ ! -s $state/ray.pid ]] || ! kill -0 "$(cat "$state/ray.pid")" 2>/dev/null || die "a node runs; stop it first"
  mkdir -p "$state"
  local node_ip=()
  [[ -z $ip ]] || node_ip=(--node-ip-address "$ip")
  start_ray "$state/ray.log" "${node_ip[@]}" "$@"
  echo "$ray_pid" >"$state/ray.pid"
  wait_for_ray "$state/ray.log" "$ray_pid"
}

head_node() {
  take_ip "$@"
  make_token
  start_node --head --port "$ray_port" --labels role=verifier "${rest[@]}"
  # What Ray calls this node is what the other host must dial.
  sed -n 's/.*Local node IP.*: \([0-9a-fA-F.:]*\).*/\1/p' "$state/ray.log" | head -n 1 >"$state/head_ip"
  say "head is up at $(cat "$state/head_ip"):$ray_port"
  say "copy ${RAY_AUTH_TOKEN_PATH:-~/.ray/auth_token} to the second host, there: two_nodes.sh worker $(cat "$state/head_ip")"
}

worker_node() {
  [[ $# -gt 0 ]] || die "worker needs the head's address"
  local head_ip=$1
  shift
  take_ip "$@"
  require_token || die "no Ray token here: copy ~/.ray/auth_token from the head"
  start_node --address "$head_ip:$ray_port" --labels role=drafter "${rest[@]}"
  say "worker has joined $head_ip:$ray_port"
}

# take_ip [--ip IP] REST...: sets $ip and $rest.
take_ip() {
  ip=''
  if [[ ${1:-} == --ip ]]; then
    ip=${2:?--ip needs an address}
    shift 2
  fi
  rest=("$@")
}

serve_apis() {
  require_token || die "no Ray token here; is this the head?"
  [[ -s $state/head_ip ]] || die "no head runs here; start it with: two_nodes.sh head"
  RAY_ADDRESS=$(cat "$state/head_ip"):$ray_port
  export RAY_ADDRESS
  exec orchestrator serve --config "$here/two_nodes.yaml" "$@"
}

stop_node() {
  [[ -s $state/ray.pid ]] || die "no node was started here"
  end "$(cat "$state/ray.pid")"
  rm -f "$state/ray.pid" "$state/head_ip"
}

# Two namespaces and a cable between them: neither reaches the other's loopback, as with two hosts.
lay_cable() {
  ip netns add sg-verifier && ip netns add sg-drafter
  ip link add sg0 netns sg-verifier type veth peer name sg0 netns sg-drafter
  local side
  for side in verifier:1 drafter:2; do
    ip -n "sg-${side%:*}" addr add "10.184.0.${side#*:}/24" dev sg0
    ip -n "sg-${side%:*}" link set sg0 up
    ip -n "sg-${side%:*}" link set lo up
  done
}

# on HOST COMMAND...: run it on one of the two, with that host's own state.
on() {
  local host=$1
  shift
  SPECGATE_STATE=$work/$host ip netns exec "sg-$host" "$@"
}

clean_up_local() {
  trap - EXIT INT TERM
  [[ -z ${serve_pid:-} ]] || end "$serve_pid"
  on drafter "$0" stop 2>/dev/null || true
  on verifier "$0" stop 2>/dev/null || true
  ip netns del sg-verifier 2>/dev/null || true
  ip netns del sg-drafter 2>/dev/null || true
  rm -rf "$work"
}

# Not by /readyz, which does not wait for a drafter.
wait_for_apis() {
  local tries
  for ((tries = 0; tries < 480; tries++)); do
    grep -q '^ready after' "$work/serve.log" && return
    kill -0 "$serve_pid" 2>/dev/null || die "orchestrator serve ended: $(tail -n 5 "$work/serve.log")"
    sleep 0.5
  done
  die "not ready within four minutes: $(tail -n 5 "$work/serve.log")"
}

local_hosts() {
  need curl ip
  [[ $(id -u) == 0 ]] || die "local makes network namespaces, which needs root"
  work=$(mktemp -d /tmp/sg.XXXXXX)
  trap clean_up_local EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  export RAY_AUTH_TOKEN_PATH=$work/token
  make_token
  lay_cable || die "this host permits no network namespaces"

  # One host's memory carries two object stores here, and nothing of ours is kept in them.
  local flags=(--num-cpus 1 --object-store-memory 100000000)
  on verifier "$0" head --ip 10.184.0.1 "${flags[@]}" --temp-dir "$work/ray1"
  on drafter "$0" worker 10.184.0.1 --ip 10.184.0.2 "${flags[@]}" --temp-dir "$work/ray2"
  # In a session of its own, so that Ctrl-C ends it by our trap alone, before Ray. Not by `on`: the process id of a
  # function is a shell's, which would not pass the signal on.
  SPECGATE_STATE=$work/verifier setsid ip netns exec sg-verifier "$0" serve "$@" >"$work/serve.log" 2>&1 &
  serve_pid=$!
  wait_for_apis
  show_local
}

show_local() {
  # Else Ray's commands would look for clusters among all processes of this host.
  export RAY_ADDRESS=10.184.0.1:$ray_port
  say "a stream:"
  on verifier curl --silent --no-buffer http://127.0.0.1:8000/v1/completions -H 'content-type: application/json' \
    -d '{"model": "specgate", "prompt": "def main():\n", "max_tokens": 24, "temperature": 0, "stream": true, "return_sources": true}'
  say "orchestrator status:"
  on verifier orchestrator status
  say "ray status:"
  on verifier ray status
}

command=${1:---help}
[[ $# == 0 ]] || shift
case $command in
  -h | --help) show_help && exit ;;
  head | worker | serve | stop | local) need ray orchestrator ;;
  *) die "unknown command $command; see --help" ;;
esac
case $command in
  head) head_node "$@" ;;
  worker) worker_node "$@" ;;
  serve) serve_apis "$@" ;;
  stop) stop_node ;;
  local) local_hosts "$@" ;;
esac
