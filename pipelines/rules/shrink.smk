# From raw files to shards. The shards are no outputs of the rule: Snakemake would wipe them when it fails.
rule shrink:
    input:
        plan=work / "plan.parquet",
    output:
        done=work / "shrunk.json",
    log:
        work / "logs/shrink.log",
    conda:
        "../envs/ingest.yaml"
    threads: workflow.cores
    params:
        settings=lambda wildcards: settings.of_room("shrink"),
        now=now,
    shell:
        "ingest shrink --settings {params.settings:q} --plan {input.plan:q} --cores {threads}"
        " --done {output.done:q} --log {log:q}"
