# Raw photos in, a sealed dataset out: snakemake --cores 32
#
# Every rule runs one verb of the `ingest` command; what decides lives there.
import time

from snakemake.utils import min_version

from ingest.build.artifact import DEMO_FOLDER
from ingest.build.config import check_settings
from ingest.build.lifeline import hold_work_folder, name_workflow

min_version("9.9")


configfile: f"{workflow.basedir}/pipelines/config.yaml"


settings = check_settings(config)
work = settings.work_folder
# A parameter of every rule, so that each always runs: what is done lies where Snakemake does not look.
now = time.time_ns()
name_workflow()


onstart:
    hold_work_folder(work)


include: "pipelines/rules/demo.smk"
include: "pipelines/rules/scan.smk"
include: "pipelines/rules/plan.smk"
include: "pipelines/rules/shrink.smk"
include: "pipelines/rules/seal.smk"


rule all:
    default_target: True
    input:
        work / "sealed.json",
