# Two commands: `make run` (the main job) and `make test` (all tests of the CPU tier). Both set up .venv by themselves.
PYTHON ?= python3
TORCH ?= torch==2.13.0
# The address of PyTorch's CPU wheels, for machines without a GPU whose package index only has the CUDA build.
TORCH_INDEX ?=
OUT ?= out/pr
WORKERS ?= 2
BIN := .venv/bin

# Worker processes carry the parallelism: a second OpenMP thread can collapse the speed of a small shared machine.
export OMP_NUM_THREADS = 1
export TOKENIZERS_PARALLELISM = false

.PHONY: run test lint setup clean

run: .venv/.ready
	$(BIN)/specmatrix run --tier cpu --stage pr --workers $(WORKERS) --out $(OUT)

test: .venv/.ready
	$(BIN)/python -m pytest tests/registered/cpu -n $(WORKERS)

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/mypy

setup: .venv/.ready

.venv/.ready: requirements.txt pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11; name a newer one: make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -m venv .venv || { echo "$(PYTHON) cannot make a virtual environment; on Debian install python3-venv" >&2; exit 2; }
	$(BIN)/pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(TORCH)
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

clean:
	rm -rf .venv out
