# make demo   set up .venv, fetch the small model, print its answer
# make test   set up .venv, then everything CI runs
# make quick  the quick tests only;  make lint  style and types only
# make previews  draw every card of the zoo again

PYTHON  ?= python3
WORKERS ?= 2
SEED    ?= ../shared/seed
CARD    := smollm2-135m-instruct
PROMPT  := Explain in two sentences why the sky is blue.

VENV := .venv
BIN  := $(VENV)/bin
PIP   = $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt
# A worker for each core, so one thread for each worker; what a file sets up is set up in one.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile "--seed-dir=$(SEED)"
# Where Linnet source lives in the package itself.
SOURCES := src/linnet/std src/linnet/zoo

# What a worker compiles is kept for the processes that tests start, and for the next run.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test quick slow browser lint types sources size previews clean
.NOTPARALLEL:

demo: $(VENV)/.run-ready
	$(BIN)/python -m linnet.nest pull $(CARD)
	$(BIN)/linnet run $(CARD) "$(PROMPT)" --dtype f32 --max-new-tokens 72

test: lint types sources quick slow size

lint: $(VENV)/.dev-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev-ready
	$(BIN)/mypy

sources: $(VENV)/.dev-ready
	$(BIN)/linnet lint $(SOURCES)
	$(BIN)/python -m linnet.nest check --no-hub src/linnet/zoo/models/*/

quick: $(VENV)/.dev-ready
	$(PYTEST) -m "not slow"

slow: $(VENV)/.dev-ready browser
	$(PYTEST) -m slow

# Chromium, for the tests of the page that `linnet serve` shows.
browser:
	@for name in "$$LINNET_CHROMIUM" chromium chromium-browser google-chrome chrome; do \
	  [ "$$name" = none ] || command -v "$$name" >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing Chromium (once) ..."; apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null && exit 0; \
	fi; \
	echo "the tests of the page need Chromium: install it as root, have one on the PATH, or name one" \
	  "(make test LINNET_CHROMIUM=/path/to/chromium); LINNET_CHROMIUM=none leaves them out" >&2; exit 1

size: $(VENV)/.dev-ready
	$(BIN)/python tools/size.py

previews: $(VENV)/.dev-ready
	$(BIN)/python -m linnet.nest preview src/linnet/zoo/models

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Stamps: set-up is done again only when what it installs from has changed.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Linnet needs Python 3.11 or newer: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.run-ready: $(VENV)/.made pyproject.toml constraints.txt
	@echo "installing Linnet and PyTorch into $(VENV) (once; some minutes) ..."
	$(PIP) -e ".[torch,nest]"
	@touch $@

$(VENV)/.dev-ready: $(VENV)/.made pyproject.toml constraints.txt
	@echo "installing Linnet, PyTorch and the test tools into $(VENV) (once; some minutes) ..."
	$(PIP) -e ".[dev]"
	@touch $@ $(VENV)/.run-ready
