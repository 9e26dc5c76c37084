# What is there. Always runs: no time stamp of a folder tells of a file that was edited inside it.
rule scan:
    input:
        settings.scan_needs,
    output:
        manifest=update(work / "manifest.parquet"),
    log:
        work / "logs/scan.log",
    conda:
        "../envs/ingest.yaml"
    params:
        settings=lambda wildcards: settings.of_room("scan"),
        now=now,
    shell:
        "ingest scan --settings {params.settings:q} --manifest {output.manifest:q} --log {log:q}"
