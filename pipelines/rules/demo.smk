# The embedded sample of photos, for a build without a configuration.
rule demo:
    output:
        f"{DEMO_FOLDER}/demo.json",
    log:
        work / "logs/demo.log",
    conda:
        "../envs/ingest.yaml"
    threads: workflow.cores
    shell:
        "ingest demo --done {output:q} --cores {threads} --log {log:q}"
