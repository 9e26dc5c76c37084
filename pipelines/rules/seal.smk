# From receipts to a dataset that readers can open.
rule seal:
    input:
        plan=work / "plan.parquet",
        shrunk=work / "shrunk.json",
    output:
        done=work / "sealed.json",
    log:
        work / "logs/seal.log",
    conda:
        "../envs/ingest.yaml"
    params:
        settings=lambda wildcards: settings.of_room("seal"),
        now=now,
    shell:
        "ingest seal --settings {params.settings:q} --plan {input.plan:q} --done {output.done:q} --log {log:q}"
