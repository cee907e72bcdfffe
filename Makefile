PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= dev,eval
# More workers than this gain little and cost a copy of torch each.
WORKERS ?= 4

BIN := $(VENV)/bin
BASE := $(VENV)/.base
INSTALLED := $(VENV)/.installed
# Every worker computes: with more threads each than one, they fight over the cores.
PYTEST_OPTIONS := -m pytest -n auto --maxprocesses $(WORKERS)
PYTEST := HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST_OPTIONS)

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-gpu test-no-extras test-lowest test-release coverage check format bench

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(BASE)  ## pretrain a small decoder headless, then with a vocabulary head for the same time
	@# Not runs/demo, where `headless-trainer pretrain demo` writes.
	@rm -rf runs/make_demo runs/make_demo_vanilla
	@$(BIN)/python studies/demo.py --output_dir runs/make_demo

test: $(INSTALLED)  ## run the quick tests
	$(PYTEST)

test-slow: $(INSTALLED)  ## run the tests that train longer or start several processes
	$(PYTEST) -m slow

coverage: $(INSTALLED)  ## run the quick tests, and print what share of the package's lines they run
	$(PYTEST) --cov headless_trainer --cov-report term

test-gpu: $(INSTALLED)  ## run the tests that need a GPU, one after the other
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m gpu

test-no-extras: $(VENV)-no-extras/.installed  ## run the quick tests with what install_requires brings, and no extra
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(VENV)-no-extras/bin/python $(PYTEST_OPTIONS)

test-lowest: $(VENV)-lowest/.installed  ## run the quick tests with the lowest direct versions that setup.cfg allows
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(VENV)-lowest/bin/python $(PYTEST_OPTIONS)

test-release:  ## build the sdist and the wheel, and run the quick tests with an installed sdist
	.ci/test_release $(PYTHON) -n auto --maxprocesses $(WORKERS)

check: $(INSTALLED)  ## lint, check the format and the types, build the documentation, count its numerals, report on the style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mkdocs build --strict --site-dir $(VENV)/site
	@$(BIN)/python tests/numerals.py
	@$(BIN)/python tests/style_report.py

format: $(INSTALLED)  ## format, and fix what lint can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# candidates.py needs a model and a text; held_steps.py is a part of others.
BENCHMARKS = $(filter-out %/candidates.py %/held_steps.py,$(wildcard benchmarks/*.py))

bench: $(INSTALLED)  ## run every benchmark that needs no input
	set -e; for script in $(BENCHMARKS); do $(BIN)/python $$script; done

# A torch built for this machine's accelerator is not replaced: the environment sees the packages of $(PYTHON), and the pinned
# torch gives way to that version. The .pth line is for a $(PYTHON) that is itself a virtual environment, whose packages
# --system-site-packages leaves out. Any other machine gets the pinned torch, from the package index that pip is set up with.
$(BASE): setup.cfg pyproject.toml constraints.txt
	@echo "installing into $(VENV)"
	@set -e; \
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
	@$(BIN)/python -m pip install --quiet --no-compile --constraint $(VENV)/constraints.txt --editable .
	@touch $@

$(INSTALLED): $(BASE)
	$(BIN)/python -m pip install --quiet --constraint $(VENV)/constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

$(VENV)-no-extras/.installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(VENV)-no-extras
	$(VENV)-no-extras/bin/python -m pip install --quiet --constraint constraints.txt --editable . pytest pytest-xdist
	touch $@

# uv resolves, from pip's own index where one is set; pip installs. torch and the test tools are those of
# constraints.txt: of torch only one build for CPUs is sure to exist, and the tools are not what is tested.
$(VENV)-lowest/.installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(VENV)-lowest
	grep -E '^(torch|pytest|pytest-xdist)==' constraints.txt > $(VENV)-lowest/pins.txt
	$(VENV)-lowest/bin/python -m pip install --quiet uv
	index=$${PIP_INDEX_URL:-$$($(VENV)-lowest/bin/python -m pip config get global.index-url 2>/dev/null || true)}; \
	$(VENV)-lowest/bin/uv pip compile --quiet --resolution lowest-direct --extra eval --python $(VENV)-lowest/bin/python \
		$${index:+--default-index "$$index"} --constraint $(VENV)-lowest/pins.txt setup.cfg --output-file $(VENV)-lowest/lowest.txt
	$(VENV)-lowest/bin/python -m pip install --quiet --constraint $(VENV)-lowest/lowest.txt \
		--constraint $(VENV)-lowest/pins.txt --editable '.[eval]' pytest pytest-xdist
	touch $@
