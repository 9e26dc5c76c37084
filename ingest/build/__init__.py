"""The build: scan -> plan -> shrink -> seal. Nothing here imports torch or DALI."""
