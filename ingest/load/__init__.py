"""The loader: from a sealed dataset to batches. Nothing here imports Dask, Snakemake or PIL."""
