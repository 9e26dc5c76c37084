# From raw files to shards. The shards are no outputs of the rule: Snakemake would wipe them when it fails.
rule shrink:
    input:
        plans=[f"{folder}/plan.parquet" for folder in outputs],
    output:
        done=[f"{folder}/shrunk.json" for folder in outputs],
    log:
        work / "logs/shrink.log",
    conda:
        "../envs/ingest.yaml"
    threads: workflow.cores
    params:
        settings=lambda wildcards: settings.of_room("shrink"),
        now=now,
    shell:
        "ingest shrink --settings {params.settings:q} --plan {input.plans:q} --cores {threads}"
        " --done {output.done:q} --log {log:q}"
