# `make test` is the one command that a contributor needs: it makes a virtual environment and runs everything.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
E2E_VENV ?= .venv-e2e
# images of containers set it: each process would then compile vLLM, or the planner, again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: test check fast lint types unit fuzz browser clients e2e docs pictures sbom lock clean

test: lint types unit

check: lint types  ## the quick part

FAST ?= tests
fast: $(STAMP)  ## tests of every package in a minute of CPU
	$(BIN)/pytest -m fast -n auto $(FAST)

$(STAMP): requirements-dev.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy
	$(BIN)/mypy tests/library_use.py  # the types as a user of the library sees them

unit: $(STAMP)
	$(BIN)/pytest -n auto

FUZZ ?= --seconds 3600
fuzz: $(STAMP)  ## broken files, hostile values, a misbehaving hub, relations of the physics: an hour on two cores
	$(BIN)/python tests/fuzz $(FUZZ)

clients: $(STAMP)  ## 50 clients of the page for a minute, on a machine that does nothing else
	$(BIN)/pytest -s tests/browser/check_clients.py

browser: $(STAMP)  ## the report and the page in headless Chromium, which has to be installed
	$(BIN)/pytest tests/browser/check_report.py tests/browser/check_ui.py

e2e: $(STAMP)  ## a real vLLM on the CPU judges the commands and runs the whole loop: 10 minutes, 4 GB; needs nginx
	@PATH="$$PATH:/usr/sbin" command -v nginx >/dev/null || { echo "e2e needs nginx: apt-get install nginx-light"; exit 1; }
	PYTHON=$(PYTHON) tests/e2e/install.sh $(E2E_VENV) build/e2e
	$(BIN)/python tests/e2e/run.py $(E2E_VENV) build/e2e $(E2E)

docs: $(STAMP)  ## the output of each documented command, and the reference of the commands
	$(BIN)/python docs/refresh.py

pictures: $(STAMP)  ## the screenshots in docs/images, by headless Chromium
	$(BIN)/python docs/pictures.py

INSTALLED ?= build/installed
sbom: $(STAMP)  ## dist/sbom.cdx.json: each package of an installation with version and licence, as CycloneDX
	@test -x $(INSTALLED)/bin/python || \
		{ $(PYTHON) -m venv $(INSTALLED) && $(INSTALLED)/bin/python -m pip install --quiet ".[ui]"; }
	mkdir -p dist
	$(BIN)/cyclonedx-py environment $(INSTALLED)/bin/python --pyproject pyproject.toml --output-reproducible \
		--output-file dist/sbom.cdx.json
	$(BIN)/python tests/check_sbom.py dist/sbom.cdx.json $(INSTALLED)/bin/python

lock:  ## needs uv; no registry host goes into the file
	uv pip compile --quiet --universal --all-extras --python-version 3.11 --generate-hashes --no-header \
		pyproject.toml requirements-dev.in -o requirements-dev.txt

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
