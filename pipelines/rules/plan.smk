# Which sample goes to which shard.
rule plan:
    input:
        manifest=work / "manifest.parquet",
    output:
        plan=update(work / "plan.parquet"),
    log:
        work / "logs/plan.log",
    conda:
        "../envs/ingest.yaml"
    params:
        settings=lambda wildcards: settings.of_room("plan"),
        now=now,
    shell:
        "ingest plan --settings {params.settings:q} --manifest {input.manifest:q} --plan {output.plan:q}"
        " --log {log:q}"
