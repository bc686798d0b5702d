# `make run` is the main job: the matrix's pull-request cells. `make test` holds the tests of the CPU tier and the smoke
# cells, `make quick` those of the engine's pure core. Each sets up .venv by itself, `run` with
# what it needs only.
PYTHON ?= python3
# The CPU build where there is no GPU; elsewhere than on Linux there is no other.
BUILD := $(if $(shell command -v nvidia-smi),,$(if $(filter Linux,$(shell uname)),+cpu))
TORCH ?= torch==2.13.0$(BUILD)
# Where PyTorch's CPU wheels are, for a machine without a GPU whose own package index lacks them.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# Of the requirements of xgrammar, only its CUDA kernels need Triton, which is large.
XGRAMMAR := xgrammar==0.2.8 apache-tvm-ffi==0.1.15.post2
TIER ?= cpu
STAGE ?= pr
OUT ?= out/$(STAGE)
# The report that a run is compared with at its end, which does not change its exit status.
BASELINE ?= reports/baselines/$(TIER)-$(STAGE).jsonl.gz
WORKERS ?= 2
BIN := .venv/bin
# Python compiles what is imported, which is a third of what is installed.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile

# Worker processes carry the parallelism: a second OpenMP thread can collapse the speed of a small shared machine.
export OMP_NUM_THREADS = 1
export TOKENIZERS_PARALLELISM = false
# Tests start hundreds of processes; without bytecode each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test quick lint lint-workflows subjects subject-transformers subject-llamacpp subject-openvino subject-onnxruntime-genai subject-mlx-lm subject-vllm subject-sglang subject-sglang-drafts setup clean

run: .venv/.ready
	@echo $(BIN)/specmatrix run --tier $(TIER) --stage $(STAGE) --workers $(WORKERS) --out $(OUT)
	@$(BIN)/specmatrix run --tier $(TIER) --stage $(STAGE) --workers $(WORKERS) --out $(OUT); status=$$?; \
	if [ $$status -le 1 ]; then \
		echo; echo "compared with $(BASELINE), for information only:"; \
		if [ -f $(BASELINE) ]; then $(BIN)/specmatrix compare $(BASELINE) $(OUT) || true; else echo "no such report is stored"; fi; \
	fi; exit $$status

test: .venv/.tested
	$(BIN)/python -m pytest tests/registered/cpu -n $(WORKERS) --dist loadfile --no-loadscope-reorder

quick: .venv/.tested
	$(BIN)/python -m pytest tests/registered/cpu/unit/engine/core -n $(WORKERS)

lint: .venv/.tested
	$(BIN)/ruff check .
	$(BIN)/mypy

# transformers, and llama.cpp, OpenVINO GenAI, ONNX Runtime GenAI, mlx-lm and vLLM in environments of their own: gigabytes, and hours. A red cell of one does not stop the other.
subjects: .venv/.ready
	@$(MAKE) --keep-going subject-transformers subject-llamacpp subject-openvino subject-onnxruntime-genai subject-mlx-lm subject-vllm

subject-transformers: .venv/.ready
	$(BIN)/specmatrix run --subject transformers --stage pr --waivers examples/transformers-waivers.yaml --workers $(WORKERS) --out out/transformers

# llama.cpp is compiled: 12 minutes of a processor.
subject-llamacpp: .venv/.ready
	$(BIN)/specmatrix subjects install llamacpp
	$(BIN)/specmatrix run --subject llamacpp --stage pr --waivers examples/llamacpp-waivers.yaml --workers $(WORKERS) --out out/llamacpp

subject-openvino: .venv/.ready
	$(BIN)/specmatrix subjects install openvino
	$(BIN)/specmatrix run --subject openvino --stage pr --waivers examples/openvino-waivers.yaml --workers $(WORKERS) --out out/openvino

subject-onnxruntime-genai: .venv/.ready
	$(BIN)/specmatrix subjects install onnxruntime-genai
	$(BIN)/specmatrix run --subject onnxruntime-genai --stage pr --waivers examples/onnxruntime-genai-waivers.yaml --workers $(WORKERS) --out out/onnxruntime-genai

subject-mlx-lm: .venv/.ready
	$(BIN)/specmatrix subjects install mlx-lm
	$(BIN)/specmatrix run --subject mlx-lm --stage pr --waivers examples/mlx-lm-waivers.yaml --workers $(WORKERS) --out out/mlx-lm

subject-vllm: .venv/.ready
	$(BIN)/specmatrix subjects install vllm
	$(BIN)/specmatrix run --subject vllm --stage nightly --waivers examples/vllm-waivers.yaml --workers $(WORKERS) --out out/vllm

# SGLang's server without drafts on a CPU, in an environment of its own: gigabytes, and ten minutes.
SGLANG := $(or $(SPECMATRIX_SGLANG),$(HOME)/.cache/specmatrix/sglang)
ON_CPU := --device cpu --dtype float32 --attention-backend torch_native --grammar-backend llguidance --max-total-tokens 65536
subject-sglang: .venv/.ready
	$(BIN)/specmatrix subjects install sglang
	SGLANG_USE_CPU_ENGINE=1 $(SGLANG)/bin/python -m sglang.launch_server $(ON_CPU) --enable-streaming-session --model-path matrix/zoo/checkpoints/llama-mini --port 30009 & \
	server=$$!; trap 'kill $$server' EXIT; \
	timeout 600 sh -c 'until curl -sf localhost:30009/health >/dev/null; do sleep 2; done'; \
	$(BIN)/specmatrix run --subject sglang --url http://127.0.0.1:30009 --stage nightly --waivers examples/sglang-waivers.yaml --out out/sglang

# The same server with an EAGLE3 chain, its Triton kernels interpreted: minutes for each cell.
CHAIN := --speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4
ZOO := matrix/zoo/checkpoints/llama-mini
subject-sglang-drafts: .venv/.ready
	$(BIN)/specmatrix subjects install sglang
	$(SGLANG)/bin/python examples/sglang_cpu.py $(CHAIN) --speculative-draft-model-path $(ZOO)-eagle3 --model-path $(ZOO) --max-total-tokens 8192 --port 30008 & \
	server=$$!; trap 'kill $$server' EXIT; \
	timeout 900 sh -c 'until curl -sf localhost:30008/health >/dev/null; do sleep 2; done'; \
	$(BIN)/specmatrix run --subject sglang --url http://127.0.0.1:30008 --stage product --cells 'eagle3.s3.pair or eagle3.s3.k1.pair' --out out/sglang-drafts

# With the programs of the path: they are no part of .venv, which the tests run in.
lint-workflows:
	check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	check-jsonschema --builtin-schema vendor.github-actions ci/github/action.yml
	check-jsonschema --builtin-schema vendor.gitlab-ci --data-transform gitlab-ci ci/gitlab/specmatrix.yml
	check-jsonschema --builtin-schema vendor.buildkite ci/buildkite/pipeline.yml
	zizmor --offline --config .github/zizmor.yml .github ci/github

setup: .venv/.tested

.venv/.ready: requirements.txt pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11; name a newer one: make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -m venv .venv || { echo "$(PYTHON) cannot make a virtual environment; on Debian install python3-venv" >&2; exit 2; }
	$(PIP) $(TORCH) 2>/dev/null || $(PIP) --extra-index-url $(TORCH_INDEX) $(TORCH)
	$(PIP) --requirement requirements.txt
	$(PIP) --no-deps $(XGRAMMAR)
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

# What only tests and lint need takes as long to install as the rest.
.venv/.tested: requirements-test.txt .venv/.ready
	$(PIP) --requirement requirements-test.txt
	@touch $@

clean:
	rm -rf .venv out
