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
    shell:
        "ingest seal --plan {input.plan:q} --done {output.done:q} --log {log:q}"
