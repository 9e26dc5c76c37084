# From receipts to a dataset that readers can open.
rule seal:
    input:
        plan="{folder}/plan.parquet",
        shrunk="{folder}/shrunk.json",
    output:
        done="{folder}/sealed.json",
    log:
        "{folder}/logs/seal.log",
    conda:
        "../envs/ingest.yaml"
    params:
        settings=lambda wildcards: outputs[wildcards.folder].of_room("seal"),
        now=now,
    shell:
        "ingest seal --settings {params.settings:q} --plan {input.plan:q} --done {output.done:q} --log {log:q}"
