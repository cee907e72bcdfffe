PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= dev,eval
# More workers than this gain little and cost a copy of torch each.
WORKERS ?= 4

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Every worker computes: with more threads each than one, they fight over the cores.
PYTEST := HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses $(WORKERS)

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow check format bench

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(INSTALLED)  ## pretrain a small headless decoder on the documentation of this machine
	test -f runs/demo/model.safetensors || $(BIN)/python run_pretrain.py configs/demo.yaml \
		$(if $(wildcard runs/demo/checkpoint-*),--resume_from_checkpoint last)
	$(BIN)/python studies/demo.py configs/demo.yaml

test: $(INSTALLED)  ## run the quick tests
	$(PYTEST)

test-slow: $(INSTALLED)  ## run the tests that train longer or start several processes
	$(PYTEST) -m slow

check: $(INSTALLED)  ## lint and check the format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(INSTALLED)  ## format, and mend what lint can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)  ## run every benchmark
	set -e; for script in benchmarks/*.py; do $(BIN)/python $$script; done

# A torch built for this machine's accelerator is not replaced: the environment sees the packages of $(PYTHON), and the pinned
# torch gives way to that version. The .pth line is for a $(PYTHON) that is itself a virtual environment, whose packages
# --system-site-packages leaves out. Any other machine gets the pinned torch, from the package index that pip is set up with.
$(INSTALLED): setup.cfg pyproject.toml constraints.txt
	set -e; \
	torch=$$($(PYTHON) -c 'import torch; print(torch.__version__ if torch.version.cuda or torch.version.hip else "")' 2>/dev/null || true); \
	if [ -n "$$torch" ]; then \
		$(PYTHON) -m venv --system-site-packages $(VENV); \
		packages=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
		$(PYTHON) -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])' > "$$packages/existing_torch.pth"; \
		sed "s/^torch==.*/torch==$$torch/" constraints.txt > $(VENV)/constraints.txt; \
	else \
		$(PYTHON) -m venv $(VENV); \
		cp constraints.txt $(VENV)/constraints.txt; \
	fi
	$(BIN)/python -m pip install --quiet --constraint $(VENV)/constraints.txt --editable '.[$(EXTRAS)]'
	touch $@
