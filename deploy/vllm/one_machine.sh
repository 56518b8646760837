#!/usr/bin/env bash
# One machine: our drafter, and stock vLLM with its OpenAI API in front; each on cards of its own, or both on the CPU.
#
#   deploy/vllm/one_machine.sh --target MODEL --draft MODEL      folders or hub ids of one tokenizer
#   deploy/vllm/one_machine.sh --target MODEL --draft MODEL --cpu -- --dtype float32 --enforce-eager
#
#   --gamma N         the most draft tokens of a step, 4 by default
#   --port PORT       HTTP of vLLM, 8000 by default
#   --drafter-port P  gRPC of the drafter, 7002 by default
#   --drafter-card N  the drafter's card, 1 by default; vLLM has CUDA_VISIBLE_DEVICES, 0 by default
#   --cpu             give no card to anybody
#   -- FLAGS...       go to vLLM, such as: -- --tensor-parallel-size 4 --quantization fp8
#
# VLLM_PYTHON is the Python that vLLM and specgate_vllm are installed for (python3). Ctrl-C ends both.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/serve.sh"

target='' draft='' gamma=4 port=8000 drafter_port=7002 drafter_card=1 device=cuda
while [[ $# -gt 0 ]]; do
  case $1 in
    -h | --help) show_help && exit ;;
    --cpu) device=cpu && shift && continue ;;
    --) shift && break ;;
    --target | --draft | --gamma | --port | --drafter-port | --drafter-card) [[ $# -gt 1 ]] || die "$1 needs a value" ;;
    *) die "unknown flag $1; see --help" ;;
  esac
  case $1 in
    --target) target=$2 ;;
    --draft) draft=$2 ;;
    --gamma) gamma=$2 ;;
    --port) port=$2 ;;
    --drafter-port) drafter_port=$2 ;;
    --drafter-card) drafter_card=$2 ;;
  esac
  shift 2
done
[[ -n $target && -n $draft ]] || die "--target and --draft are needed"
need drafter-svc
need_vllm
speculation=$(speculation "$gamma")

drafter_pid='' vllm_pid=''
clean_up() {
  trap - EXIT INT TERM
  [[ -z $vllm_pid ]] || end "$vllm_pid"
  [[ -z $drafter_pid ]] || end "$drafter_pid"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Nobody waits for the drafter: vLLM serves without, and drafts come once it is there.
CUDA_VISIBLE_DEVICES=$drafter_card setsid drafter-svc --model "$draft" --port "$drafter_port" --device "$device" &
drafter_pid=$!
[[ $device == cpu ]] || export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
SPECGATE_DRAFTERS=127.0.0.1:$drafter_port setsid "${vllm[@]}" --model "$target" --host 127.0.0.1 --port "$port" \
  --speculative-config "$speculation" "$@" &
vllm_pid=$!
wait "$vllm_pid"
