# Which sample goes to which shard.
rule plan:
    input:
        manifest=work / "manifest.parquet",
    output:
        plan=update("{folder}/plan.parquet"),
    log:
        "{folder}/logs/plan.log",
    conda:
        "../envs/ingest.yaml"
    params:
        settings=lambda wildcards: outputs[wildcards.folder].of_room("plan"),
        now=now,
    shell:
        "ingest plan --settings {params.settings:q} --manifest {input.manifest:q} --plan {output.plan:q}"
        " --log {log:q}"
