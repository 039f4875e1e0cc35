"""Setters of a task's MSJob, on a component of this package and on an msjob_component."""

from kfp import dsl

from kfp_mindspore import dsl as mindspore_dsl
from kfp_mindspore.components.training.train_msjob import train_msjob


@mindspore_dsl.msjob_component(workers=2)
def count(numbers: int) -> int:
    return numbers


@dsl.pipeline(name="setters")
def golden(numbers: int = 5):
    task = train_msjob(command=["python", "train.py"], workers=2)
    mindspore_dsl.set_run_policy(
        task,
        backoff_limit=1,
        active_deadline_seconds=3600,
        ttl_seconds_after_finished=86400,
        clean_pod_policy="All",
    )
    mindspore_dsl.set_restart_policy(task, "ExitCode")
    mindspore_dsl.set_success_policy(task, "AllWorkers")
    mindspore_dsl.set_worker_resources(task, cpu="2", memory="4Gi", accelerator="huawei.com/Ascend910")
    mindspore_dsl.add_worker_env(task, "OMP_NUM_THREADS", "1")
    mindspore_dsl.add_worker_env(task, "GLOG_v", "2")
    mindspore_dsl.add_job_label(task, "team", "vision")
    mindspore_dsl.add_job_annotation(task, "example.org/reason", "golden file")
    mindspore_dsl.set_worker_count(count(numbers=numbers), 4)
