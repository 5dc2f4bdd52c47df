# `make help` lists the commands. PYTHON=python3.12 chooses the interpreter, ARGS="..." is passed on.
PYTHON ?= python3
ARGS ?=
VENV := .venv
# Training libraries and data tools that the tests use, each at one version.
PEERS := .venv-peers
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Pinned: the latest wheel pulls gigabytes.
TORCH := torch==2.13.0
# Without what it requires, which is the latest torch.
TORCHDATA := torchdata==0.11.0
# Tests in another environment, and of millions of rows.
OF_OTHERS := --ignore tests/peers --ignore tests/nightly

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-fast test-rest test-nightly check covered planted-bugs counts bench peers plots training-loops docs reference screenshots terminal-pictures tutorial-pictures format release clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-19s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-demo $(if $(findstring --ui,$(ARGS)),$(VENV)/.installed-ui) ## play CartPole with 4 writers into one database and sample from it (ARGS="--ui")
	$(BIN)/sqlbuffer demo $(ARGS)

# Hundreds of processes of the tests import the package: each would compile it again, for 0.4 s.
test test-all test-fast test-rest: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/.installed-test $(VENV)/.installed-torch ## run the tests on SQLite and PostgreSQL (ARGS="-k word -x")
	$(BIN)/python -m pytest -n 4 --dist worksteal --ignore tests/integrations $(OF_OTHERS) --part test $(ARGS)

test-all: test test-rest ## run all tests: kills, other programs and libraries too

test-fast: $(VENV)/.installed-test $(VENV)/.installed-torch ## run what takes a minute: SQLite only, no processes, no slow tests
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --ignore tests/integrations $(OF_OTHERS) --part minute $(ARGS)

test-rest: $(VENV)/.installed-test $(VENV)/.installed-integrations $(VENV)/.installed-torch $(PEERS)/.installed ## run the tests that `make test` leaves out
	$(BIN)/python -m pytest -n 3 --dist loadfile tests/storage/plans --part rest $(ARGS)
	$(BIN)/python -m pytest -n 4 --dist worksteal --ignore tests/storage/plans $(OF_OTHERS) --part rest $(ARGS)
	$(PEERS)/bin/python -m pytest -n 3 --dist worksteal --ignore tests/peers/nightly tests/peers $(ARGS)

test-nightly: $(VENV)/.installed-test $(VENV)/.installed-torch $(PEERS)/.installed ## run the tests on very many rows, slow examples, and all combinations of parameters
	$(BIN)/python -m pytest tests/nightly $(ARGS)
	$(BIN)/python -m pytest -n 4 --dist worksteal --ignore tests/integrations $(OF_OTHERS) $(ARGS)
	$(PEERS)/bin/python -m pytest tests/peers/nightly $(ARGS)

# Types of other libraries too: those that the journeys of tests/journeys import.
check: $(VENV)/.installed-dev $(VENV)/.installed-test $(VENV)/.installed-torch ## check formatting, lint, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/basedpyright
	$(BIN)/lint-imports

covered: $(VENV)/.installed-dev $(VENV)/.installed-test $(VENV)/.installed-torch ## note which tests run which line
	$(BIN)/python -m tests.measures.coverage -n 4 --dist worksteal --ignore tests/integrations $(OF_OTHERS) $(ARGS)

planted-bugs: $(VENV)/.installed-dev ## plant bugs and see which the tests catch, after `make covered` (ARGS="--seed 1")
	$(BIN)/python -m tests.measures.planted_bugs $(ARGS)

counts: $(VENV)/.installed-dev ## count modules, code, docstrings and imports
	$(BIN)/python -m tests.measures.counts $(ARGS)

bench: $(VENV)/.installed-test ## measure both databases and print the table (ARGS="--rows 100000")
	$(BIN)/python -m tests.benchmarks $(ARGS)

peers: $(VENV)/.installed-test ## measure other replay buffers that are installed in the same environment
	$(BIN)/python -m tests.benchmarks.peers $(ARGS)

plots: $(VENV)/.installed-test ## draw the plots of docs/performance.md from docs/contributing/benchmarks.json
	$(BIN)/python -m tests.benchmarks.plots

training-loops: $(PEERS)/.installed ## measure training loops of Stable-Baselines3 with and without a database
	$(PEERS)/bin/python -m tests.benchmarks.sb3_loops $(ARGS)

docs: $(VENV)/.installed-docs ## build the documentation into docs/_build
	$(BIN)/python -m sphinx -W -q docs docs/_build

reference: $(VENV)/.installed-test ## write the generated pages: commands, limits, views and tables
	$(BIN)/python -m tests.docs.cli_page
	$(BIN)/python -m tests.docs.limits_page
	$(BIN)/python -m sqlbuffer.storage.schema.reference

screenshots: $(VENV)/.installed-test ## take the pictures of docs/images with Chromium
	$(BIN)/python -m tests.integrations.web.screenshots

tutorial-pictures: $(PEERS)/.installed ## draw the plots of docs/tutorials with their own code
	$(PEERS)/bin/python -m tests.docs.tutorial_pictures

terminal-pictures: $(VENV)/.installed-test ## take the pictures of the command line in docs/images
	$(BIN)/python -m tests.integrations.cli.pictures

format: $(VENV)/.installed-dev ## format the code and mend what the linter can
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

release: $(VENV)/.installed-dev ## build a release, check it and write its notes into dist/; upload nothing (ARGS="--draft")
	$(BIN)/python -m tests.release $(ARGS)

clean: ## remove the environment and everything generated
	rm -rf $(VENV) $(PEERS) dist build docs/_build .covered .hypothesis
	rm -rf .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find alembic sqlbuffer tests -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed-torch: | $(VENV)/.created
	@echo "Installing $(TORCH)"
	@$(PIP) install --quiet "$(TORCH)" && $(PIP) install --quiet --no-deps $(TORCHDATA) \
		|| echo "No $(TORCH) for this Python: its tests will be skipped"
	@touch $@

$(VENV)/.installed-%: pyproject.toml | $(VENV)/.created
	@echo "Installing sqlbuffer[$*] into $(VENV)"
	@$(PIP) install --quiet --editable ".[$*]"
	@touch $@

# What CI needs by one call of pip: each takes 20 s.
EXTRAS := dev test docs integrations
empty :=
comma := ,
$(VENV)/.installed-everything: pyproject.toml | $(VENV)/.created
	@echo "Installing sqlbuffer[$(EXTRAS)] into $(VENV)"
	@$(PIP) install --quiet --editable ".[$(subst $(empty) $(empty),$(comma),$(EXTRAS))]"
	@touch $(EXTRAS:%=$(VENV)/.installed-%) $@

# torch first: the other libraries ask for any version of it.
$(PEERS)/.installed: pyproject.toml tests/peers/requirements.txt
	@echo "Installing the libraries of tests/peers/requirements.txt into $(PEERS)"
	@$(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip --disable-pip-version-check install --quiet "$(TORCH)"
	@$(PEERS)/bin/python -m pip --disable-pip-version-check install --quiet --requirement tests/peers/requirements.txt --editable ".[test]"
	@touch $@
