# Raw photos in, sealed datasets out: snakemake --cores 32
#
# Every rule runs one verb of the `ingest` command; what decides lives there.
import re
import time

from snakemake.utils import min_version

from ingest.build.artifact import DEMO_FOLDER
from ingest.build.config import check_settings
from ingest.build.lifeline import hold_work_folder, name_workflow

min_version("9.9")


configfile: f"{workflow.basedir}/pipelines/config.yaml"


settings = check_settings(config)
outputs = {str(output.work_folder): output for output in settings.outputs}
work = next(
    iter(outputs.values())
).work_folder  # of the first dataset: what all have in common lies there
# A parameter of every rule, so that each always runs: what is done lies where Snakemake does not look.
now = time.time_ns()
name_workflow()


wildcard_constraints:
    folder="|".join(map(re.escape, outputs)),


onstart:
    for output in outputs.values():
        hold_work_folder(output.work_folder)


include: "pipelines/rules/demo.smk"
include: "pipelines/rules/scan.smk"
include: "pipelines/rules/plan.smk"
include: "pipelines/rules/shrink.smk"
include: "pipelines/rules/seal.smk"


rule all:
    default_target: True
    input:
        [f"{folder}/sealed.json" for folder in outputs],
