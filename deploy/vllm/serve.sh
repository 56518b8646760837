# shellcheck shell=bash
# What the scripts of this folder share. Sourced after ../common.sh, never run.

vllm_python=${VLLM_PYTHON:-python3}
# shellcheck disable=SC2034 # the caller runs it
vllm=("$vllm_python" -m vllm.entrypoints.openai.api_server)

need_vllm() {
  "$vllm_python" -c 'import importlib.util as u, sys; sys.exit(not (u.find_spec("vllm") and u.find_spec("specgate_vllm")))' ||
    die "$vllm_python lacks vllm or specgate_vllm; install both, and name the Python by VLLM_PYTHON"
}

# speculation GAMMA: the value of vLLM's --speculative-config.
speculation() {
  [[ $1 =~ ^[1-9][0-9]*$ ]] || die "--gamma is a number above 0, not $1"
  printf '{"method": "custom_class", "model": "specgate_vllm.Proposer", "num_speculative_tokens": %d}' "$1"
}
