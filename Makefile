# Two commands on a fresh machine:
#   make demo    set up, build the sample dataset, train on it for a moment
#   make test    set up, run every check; .ci/run does the same
# Variables: PYTHON=python3.12 (3.11 or newer), CUDA=12 (or 13), CORES=4.

CORES ?= all
export PYTHON CUDA
in_venv = @echo '== $(1)'; PATH="$(CURDIR)/.venv/bin:$$PATH" $(1)

.PHONY: demo test check clean

demo:
	@pipelines/setup.sh demo
	$(call in_venv,snakemake --cores $(CORES))
	$(call in_venv,python examples/train.py)

test:
	@pipelines/setup.sh test
	@$(MAKE) --no-print-directory check

check:
	$(call in_venv,ruff format --check)
	$(call in_venv,ruff check)
	$(call in_venv,mypy)
	$(call in_venv,lint-imports)
	$(call in_venv,snakefmt --check Snakefile pipelines)
	$(call in_venv,snakemake --lint)
	$(call in_venv,pytest -n 2 --dist worksteal)

# Removes what set-up and checks left; datasets and pictures stay.
clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
