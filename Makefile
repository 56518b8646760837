# Every target makes .venv by itself when it is missing or when the pins have changed.
.DEFAULT_GOAL := help
.PHONY: help demo test test-full test-real test-clients test-triton test-vllm chaos lint protos site bench clean

PYTHON ?= python3
export PYTHON

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/.installed ## the bundled pair on this machine: the decode loop, the benchmark, both APIs
	@# In a pipe or a log: colours, which tell the tokens apart, but no moving bars.
	@if [ ! -t 1 ]; then export FORCE_COLOR=1 TTY_INTERACTIVE=0; fi; .venv/bin/orchestrator demo

test: .venv/.installed ## what CI runs: lint, protos, the site, and the tests
	scripts/check
	scripts/test_programs
	scripts/test

test-full: .venv/.installed ## the same, with the slow tests
	scripts/check
	scripts/test_programs
	scripts/test -m "not gpu and not real and not chaos and not clients and not vllm"

test-real: .venv/.installed ## make real weights outside the repository, and test with them
	scripts/real_model
	scripts/test -m real tests/real

test-clients: .venv/.installed ## fetch other people's clients and benchmarks, and run them against a served system: 20 minutes
	scripts/test_clients

test-triton: .venv/.installed ## fetch Triton, and test our kernels in its interpreter and its compiler
	scripts/test_triton

test-vllm: .venv/.installed ## fetch stock vLLM for CPUs, and test and measure it with our drafter
	scripts/test_vllm

chaos: .venv/.installed ## attack the services, the served system and the network; fuzz both APIs: 40 minutes
	scripts/chaos

lint: .venv/.installed ## ruff, mypy and import-linter
	scripts/lint

protos: ## generate specgate/v1 and specgate_vllm/v1 from protos/
	scripts/gen_protos

site: .venv/.installed ## build the site of docs/ into site/
	scripts/site

bench: .venv/.installed ## measure, with the services pinned to their own cores
	.venv/bin/orchestrator bench --pin

clean: ## remove environments, caches and what was built
	rm -rf .venv .venv-protos .venv-clients-* .venv-vllm .venv-release .triton node_modules build dist site *.egg-info
	rm -rf clients/node/node_modules clients/cpp/build tests/clients/node/node_modules
	rm -f specgate/runtime/cpu/libspecgate_cpu.so
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The sources of the C library: what is installed has it built.
.venv/.installed: pyproject.toml setup.py constraints.txt scripts/install $(wildcard specgate/runtime/cpu/native/*.[ch])
	scripts/install
