#!/usr/bin/env bash
# One host, two cards: the verifier on one, the drafter on the other, HTTP API and gRPC API in front. Or both on one card.
#
#   deploy/two_gpus.sh --target MODEL --draft MODEL      folders or hub ids; without them the bundled pair
#   deploy/two_gpus.sh --one-card                        both models on one card; the drafter does not run ahead
#   deploy/two_gpus.sh --cpu                             the same without cards, to try it
#
#   --dtype TYPE      auto (default: bfloat16 on cards, float32 on the CPU), float32, bfloat16 or float16
#   --port PORT       HTTP, 8000 by default
#   --grpc-port PORT  gRPC, 8001 by default
#   --ray-port PORT   Ray's own head port, 6379 by default
#   --one-card        half of a card each for Ray; of its memory three quarters to the verifier, a quarter to the drafter
#   --cpu             give no card to anybody
#   -- FLAGS...       go to `orchestrator serve`, such as: -- --set verifier.max_sessions=32
#
# Ray runs with token authentication. Ctrl-C drains the APIs, then ends everything that this script has started.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

dtype=auto port=8000 grpc_port=8001 ray_port=6379 cards=2 share=1
models=() on_one_card=()
while [[ $# -gt 0 ]]; do
  case $1 in
    -h | --help) show_help && exit ;;
    --cpu) cards=0 share=0 && shift && continue ;;
    --one-card) cards=1 share=0.5 && shift && continue ;;
    --) shift && break ;;
    --target | --draft | --dtype | --port | --grpc-port | --ray-port) [[ $# -gt 1 ]] || die "$1 needs a value" ;;
    *) die "unknown flag $1; see --help" ;;
  esac
  case $1 in
    --target) models+=(--set "verifier.model=$2") ;;
    --draft) models+=(--set "drafter.model=$2") ;;
    --dtype) dtype=$2 ;;
    --port) port=$2 ;;
    --grpc-port) grpc_port=$2 ;;
    --ray-port) ray_port=$2 ;;
  esac
  shift 2
done

need ray orchestrator
if [[ $cards != 0 ]]; then
  found=$(nvidia-smi --list-gpus 2>/dev/null | wc -l) || found=0
  [[ $found -ge $cards ]] ||
    die "this host has $found NVIDIA cards and $cards are needed; --one-card takes one, --cpu runs the same without"
fi
if [[ $cards == 1 ]]; then
  # Two processes take turns on a card: guesses would hold up what they are guesses of. Each sizes its KV pages alone.
  on_one_card=(--set drafter.run_ahead=0 --set verifier.memory_share=0.75 --set drafter.memory_share=0.25)
fi

work=$(mktemp -d /tmp/specgate.XXXXXX)
ray_pid='' serve_pid=''
clean_up() {
  trap - EXIT INT TERM
  # The APIs first: they need Ray to drain.
  [[ -z $serve_pid ]] || end "$serve_pid"
  [[ -z $ray_pid ]] || end "$ray_pid"
  rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

make_token
say "starting Ray on 127.0.0.1:$ray_port with $cards cards"
start_ray "$work/ray.log" --head --node-ip-address 127.0.0.1 --port "$ray_port" --num-gpus "$cards" \
  --temp-dir "$work/ray"
wait_for_ray "$work/ray.log" "$ray_pid"

# With a whole card for each, Ray shows each replica its own one only.
RAY_ADDRESS=127.0.0.1:$ray_port setsid orchestrator serve "${models[@]}" \
  --set "gateway.http.port=$port" --set "gateway.grpc.port=$grpc_port" \
  --set "verifier.placement.num_gpus=$share" --set "drafter.placement.num_gpus=$share" \
  --set "verifier.dtype=$dtype" --set "drafter.dtype=$dtype" \
  "${on_one_card[@]}" "$@" &
serve_pid=$!
wait "$serve_pid"
