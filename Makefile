# Haltline's commands. Everything lives in .venv; nothing else on the machine is touched.

VENV := .venv
PIP := $(VENV)/bin/python -m pip install --disable-pip-version-check

# The newest of the usual names that is new enough and can make environments.
CANDIDATES := $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11
FIND_PYTHON = for name in $(CANDIDATES); do \
	  if "$$name" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' \
	    2>/dev/null; then echo "$$name"; exit 0; fi; \
	done

.PHONY: help serve test test-all lint clean

help:
	@echo 'make serve      install what is needed, then start everything on this machine'
	@echo 'make test       install the test tools, then run the tests (without the slow ones)'
	@echo 'make test-all   all tests; HALTLINE_TEST_ROUNDS=10 multiplies the randomised rounds'
	@echo 'make lint       ruff, mypy, import contracts'
	@echo 'make clean      remove .venv and caches, never .haltline'

serve: $(VENV)/.serve
	@exec $(VENV)/bin/python manage.py serve --interrupt-ok

test: $(VENV)/.test
	$(VENV)/bin/python -m pytest -m 'not slow'

test-all: $(VENV)/.test
	$(VENV)/bin/python -m pytest

lint: $(VENV)/.test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

$(VENV)/bin/python:
	@python=$$($(FIND_PYTHON)); \
	if [ -z "$$python" ]; then \
	  echo 'Haltline needs Python 3.11 or newer with venv and ensurepip' >&2; \
	  echo '(on Debian: apt-get install python3-venv; or name one: make PYTHON=/path/to/python3)' >&2; \
	  exit 1; \
	fi; \
	echo "making $(VENV) with $$python"; \
	"$$python" -m venv $(VENV)

# A stamp is as new as the last installation that went through to its end.
$(VENV)/.serve: pyproject.toml | $(VENV)/bin/python
	$(PIP) -e '.[worker]'
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/bin/python
	$(PIP) -e '.[worker,dev]'
	@touch $@ $(VENV)/.serve

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
