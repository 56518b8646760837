#!/usr/bin/env bash
# Two machines in one private network: the drafter on one, stock vLLM with its OpenAI API on the other.
#
#   deploy/vllm/two_machines.sh drafter --model DRAFT --host IP [FLAGS OF drafter-svc...]
#   deploy/vllm/two_machines.sh check IP:PORT... [--target FOLDER]
#   deploy/vllm/two_machines.sh vllm IP:PORT[,IP:PORT...] --model TARGET [FLAGS OF vLLM...]
#
# `drafter` listens at port 7002 unless --port says otherwise. Beyond loopback it wants a certificate (--tls-certificate,
# --tls-key, --tls-client-ca), or --insecure in a network where nobody else is. vLLM's side takes SPECGATE_TLS_CA,
# SPECGATE_TLS_CERTIFICATE and SPECGATE_TLS_KEY. Start either first; several drafters share the requests.
#
# GAMMA is the most draft tokens of a step (4), VLLM_PYTHON the Python that vLLM and specgate_vllm are installed for.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/serve.sh"

command=${1:---help}
[[ $# == 0 ]] || shift
case $command in
  -h | --help) show_help && exit ;;
  drafter)
    need drafter-svc
    exec drafter-svc --port 7002 "$@"
    ;;
  check)
    exec "$vllm_python" -m specgate_vllm.check "$@"
    ;;
  vllm)
    [[ ${1:-} == *:* ]] || die "vllm needs the drafters' HOST:PORT"
    need_vllm
    speculation=$(speculation "${GAMMA:-4}")
    export SPECGATE_DRAFTERS=$1
    shift
    exec "${vllm[@]}" --speculative-config "$speculation" "$@"
    ;;
  *) die "unknown command $command; see --help" ;;
esac
