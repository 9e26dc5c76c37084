# The embedded sample of photos, for a build without a configuration.
rule demo:
    output:
        f"{DEMO_FOLDER}/demo.json",
    log:
        work / "logs/demo.log",
    conda:
        "ingest"
    threads: workflow.cores
    params:
        folder=DEMO_FOLDER,
    shell:
        "ingest demo {params.folder:q} --cores {threads} --done {output:q} --log {log:q}"
