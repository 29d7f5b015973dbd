# Switchboard. Needs Python 3.11 or newer (with venv) and make; everything else is fetched into .venv.
# Relative paths only, so that a folder whose name holds a space works.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
SHELL := /bin/sh

VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
# The first of these that is new enough makes .venv; or say: make PYTHON=/path/to/python3.12 up
PYTHON ?=
PYTHONS := python3 python3.14 python3.13 python3.12 python3.11 python

.PHONY: help up demo demo-stall serve migrate test test-docker bench chaos lint docs install clean

help: ## show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z][a-z-]*:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

up: $(READY) ## everything, from nothing: database, server, and what to type next
	@exec $(PY) -m switchboard up

demo: $(READY) ## the main job once, in a place of its own: a webhook in, an agent completes it
	@exec $(PY) -m switchboard demo

demo-stall: $(READY) ## a queue that stalls is nudged until it is empty, on a clock that is moved
	@exec $(PY) -m switchboard demo --stall

serve: $(READY) ## the server alone, on the database of SWITCHBOARD_DATABASE_URL
	@exec $(PY) -m switchboard serve

migrate: $(READY) ## bring the database of SWITCHBOARD_DATABASE_URL up to date
	@exec $(PY) -m switchboard migrate

test: $(READY) ## all tests: SQL, races, Python, end to end
	@exec scripts/test

test-docker: $(READY) ## the suites against the image of db/Dockerfile, with pg_cron at 30 s; needs Docker
	@exec scripts/test-docker

bench: $(READY) ## how fast, beside peers, in one run
	@exec bench/run

chaos: $(READY) ## break everything under load, for an hour or two; nothing acknowledged may be lost
	@exec scripts/chaos

lint: $(READY) ## style, types, and known flaws in what others wrote
	@$(PY) -m ruff check py db/migrations bench docker
	@$(PY) -m ruff format --check py
	@$(PY) -m mypy
	@$(PY) scripts/audit.py
	@echo "lint: clean"

docs: $(READY) ## write what is generated in the documentation, and the output of its psql sessions
	@exec scripts/with-server embedded $(PY) scripts/docs

install: $(READY) ## only make .venv

clean: ## remove what make has made, but for the data in .switchboard
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build

$(READY): pyproject.toml
	@found=; \
	for candidate in $(PYTHON) $(PYTHONS); do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "Python 3.11 or newer is needed, and none of these is it: $(PYTHON) $(PYTHONS)" >&2; \
	  echo "Install one (Debian 12, Ubuntu 24.04 and later: apt install python3 python3-venv), or name it: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; \
	  exit 1; \
	fi; \
	if ! "$$found" -c 'import ensurepip, venv' 2>/dev/null; then \
	  echo "$$found has no venv module. On Debian and Ubuntu: apt install python3-venv" >&2; \
	  exit 1; \
	fi; \
	if ! $(PY) -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	  echo "Making $(VENV) with $$found …"; \
	  rm -rf $(VENV); \
	  "$$found" -m venv $(VENV) || { echo "No virtual environment could be made in $(VENV): is the disk full, or the folder not yours?" >&2; exit 1; }; \
	fi; \
	echo "Installing what Switchboard needs into $(VENV) (a minute, the first time) …"; \
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev]' || { \
	  echo "The packages could not be installed. Is the package index reachable from here? Then run the same again." >&2; exit 1; }; \
	touch $(READY)
