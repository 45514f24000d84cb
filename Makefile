# make install   the development environment in .venv
# make test      style, types, layers and tests
# make demo      index the sample documents and search them
#                make demo PDF=my.pdf Q="what I want to know"
.PHONY: install test demo clean
# Handed to the shell as variables, so that quotes and dollars in them stay what they are.
export PDF Q
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

$(VENV)/installed: pyproject.toml constraints.txt hatch_build.py budgetvdr/similarity/_native.c budgetvdr/similarity/_native_tier.h
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

install: $(VENV)/installed

test: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile

demo: install
	$(BIN)/budgetvdr demo $(if $(PDF),"$$PDF") $(if $(Q),--query "$$Q")

clean:
	rm -rf $(VENV) demo.bvdr demo-*.png
