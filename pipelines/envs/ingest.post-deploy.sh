#!/usr/bin/env bash
# Runs once in the folder of the workflow after Snakemake has made the environment.
set -euo pipefail
python -m pip install ".[build]"
