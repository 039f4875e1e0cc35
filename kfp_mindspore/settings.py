"""Environment variables and constants that several packages share, each defined once.

Variables used by one package only, such as the model server's flags, are defined in that package.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

# Where jobs and services run: `local` or `kubernetes`.
BACKEND_VARIABLE = "KFP_MINDSPORE_BACKEND"
LOCAL = "local"
KUBERNETES = "kubernetes"
# For services: another word for `kubernetes`.
KSERVE = "kserve"

# Image with this package: for pipeline steps and job pods.
IMAGE_VARIABLE = "KFP_MINDSPORE_IMAGE"
SERVER_IMAGE_VARIABLE = "KFP_MINDSPORE_SERVER_IMAGE"

# `.invalid` is a reserved top-level domain: no registry serves these images, so a missing --image fails by name.
# kfp.local requires `python` in the image name that it runs without a container.
PLACEHOLDER_PREFIX = "kfp-mindspore.invalid/"
PLACEHOLDER_IMAGE = f"{PLACEHOLDER_PREFIX}python:use-kfp_mindspore.dsl.set_image"
PLACEHOLDER_OPERATOR_IMAGE = f"{PLACEHOLDER_PREFIX}operator:placeholder"
PLACEHOLDER_SERVER_IMAGE = f"{PLACEHOLDER_PREFIX}server:placeholder"

# User of job pods: the first one in most distributions and Jupyter images; HwHiAiUser in Ascend's drivers, as a rule.
POD_USER = 1000

# The training contract: a training process's directories.
DATASET_VARIABLE = "KFP_MINDSPORE_DATASET_DIR"
CHECKPOINT_VARIABLE = "KFP_MINDSPORE_CHECKPOINT_DIR"
OUTPUT_VARIABLE = "KFP_MINDSPORE_OUTPUT_DIR"
# File in the output directory: a JSON object per epoch.
METRICS_FILE = "metrics.jsonl"

# Local state: jobs, services and runs.
HOME_VARIABLE = "KFP_MINDSPORE_HOME"
# "0": members of local jobs are not forked from their supervisor.
FORK_VARIABLE = "KFP_MINDSPORE_FORK"
LEASE_VARIABLE = "KFP_MINDSPORE_LEASE"

# A local run's checkpoints, kept until the run succeeds: a resumed run trains on from them.
RUN_CHECKPOINTS_VARIABLE = "KFP_MINDSPORE_RUN_CHECKPOINTS"
# "1" in the steps of a resumed run.
RESUMED_VARIABLE = "KFP_MINDSPORE_RESUMED"
# A run's progress events.
EVENTS_VARIABLE = "KFP_MINDSPORE_EVENTS"
STEP_VARIABLE = "KFP_MINDSPORE_STEP"

# `fit` progress for its job's backend: a file, or `-` for lines with the prefix below on standard error.
PROGRESS_VARIABLE = "KFP_MINDSPORE_PROGRESS"
PROGRESS_PREFIX = "KFP_MINDSPORE_PROGRESS "

# Digest over the code that a local run executes; part of its steps' cache key.
CODE_DIGEST_VARIABLE = "KFP_MINDSPORE_CODE_DIGEST"
# Directory with records about the files that a local run's steps open.
READS_VARIABLE = "KFP_MINDSPORE_READS"
# TMPDIR in the process that started a local run, for services that outlive the run; empty without one.
CALLER_TMPDIR_VARIABLE = "KFP_MINDSPORE_CALLER_TMPDIR"
# A task's MSJob options, set by the task setters in `kfp_mindspore.dsl`.
JOB_OPTIONS_VARIABLE = "KFP_MINDSPORE_MSJOB_OPTIONS"
# Digest over what a pipeline sets on a launcher's task; part of its step's cache key.
TASK_CONFIG_DIGEST_VARIABLE = "KFP_MINDSPORE_TASK_CONFIG_DIGEST"
DEBUG_VARIABLE = "KFP_MINDSPORE_DEBUG"

MODEL_KEY_VARIABLE = "MINDSPORE_MODEL_KEY"
# Bearer token for requests to services whose server has --token_file.
SERVICE_TOKEN_VARIABLE = "KFP_MINDSPORE_SERVICE_TOKEN"

# MindSpore's dynamic cluster, read by `mindspore.communication.init`. A worker's node ID is its rank.
ROLE_VARIABLE = "MS_ROLE"
SCHEDULER_ROLE = "MS_SCHED"
WORKER_ROLE = "MS_WORKER"
PARAMETER_SERVER_ROLE = "MS_PSERVER"
SCHEDULER_HOST_VARIABLE = "MS_SCHED_HOST"
SCHEDULER_PORT_VARIABLE = "MS_SCHED_PORT"
# The default of msrun, under other launchers: sshd of the MPI operator's images listens on 2222.
LAUNCHER_SCHEDULER_PORT = 8118
WORKER_COUNT_VARIABLE = "MS_WORKER_NUM"
NODE_ID_VARIABLE = "MS_NODE_ID"
# World size: MindSpore's own variable; Open MPI; MPICH, Intel MPI; Kubeflow Trainer's torch and jax policies; the
# PyTorch convention.
SIZE_VARIABLES = (
    *(WORKER_COUNT_VARIABLE, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PET_NNODES", "JAX_NUM_PROCESSES", "WORLD_SIZE"),
)
# Rank: the same, and Volcano's env plugin and indexed Jobs, which announce no size.
RANK_VARIABLES = (
    *(NODE_ID_VARIABLE, "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PET_NODE_RANK", "JAX_PROCESS_ID", "RANK"),
    *("VC_TASK_INDEX", "JOB_COMPLETION_INDEX"),
)
# Rank and size on this node: Open MPI; MPICH, Intel MPI; the PyTorch convention.
LOCAL_RANK_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "LOCAL_RANK")
LOCAL_SIZE_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE")
SERVER_COUNT_VARIABLE = "MS_SERVER_NUM"
# Timeout for every collective in seconds, not a failure detector: a busy peer that exceeds it fails all workers.
# MindSpore's own default is 30.
NODE_TIMEOUT_VARIABLE = "MS_NODE_TIMEOUT"
# Topology defaults, which a template may replace. The intervals in seconds, by default 3 and 5, apply to the messages
# to the scheduler: init() waits for several.
TOPOLOGY_DEFAULTS = {
    NODE_TIMEOUT_VARIABLE: "300",
    "MS_RETRY_INTERVAL_LOWER": "1",
    "MS_RETRY_INTERVAL_UPPER": "1",
}
# Workers that an elastic job requested; fewer run as long as capacity is missing.
REQUESTED_WORKERS_VARIABLE = "KFP_MINDSPORE_REQUESTED_WORKERS"
# Core numbers that a local worker binds itself to, separated by commas.
CORES_VARIABLE = "KFP_MINDSPORE_CORES"

# Device types as MindSpore spells them. `auto` is what the variable names, which a job's pods have, else MindSpore's.
AUTO, CPU, GPU, ASCEND = "auto", "CPU", "GPU", "Ascend"
DEVICES = (AUTO, CPU, GPU, ASCEND)
DEVICE_VARIABLE = "KFP_MINDSPORE_DEVICE"
# The same, by the resources that a job's pods request: not on this machine, where resources are ignored.
POD_DEVICE_VARIABLE = "KFP_MINDSPORE_POD_DEVICE"
# Set by msrun, and here for launchers that announce a local rank.
DEVICE_ID_VARIABLE = "DEVICE_ID"

# Read when NumPy and MindSpore are imported: OpenMP threads.
THREADS_VARIABLE = "OMP_NUM_THREADS"

# A training process's exit codes. A restart after the first is not counted if the process received SIGTERM.
TERMINATED_EXIT_CODE = 143  # SIGTERM; a checkpoint was written after the current step
PEER_LOST_EXIT_CODE = 75  # EX_TEMPFAIL: a collective failed, so another worker is lost
HANG_EXIT_CODE = 76  # no step was completed within HANG_SECONDS_VARIABLE

# Seconds without a completed step until a training process writes its stacks and exits; 0 disables it.
HANG_SECONDS_VARIABLE = "KFP_MINDSPORE_HANG_SECONDS"
DEFAULT_HANG_SECONDS = 600.0
# File that a training process writes each second while it lives: {"rank", "step", "time", "in_step", "ended"}.
HEARTBEAT_VARIABLE = "KFP_MINDSPORE_HEARTBEAT_FILE"
# Multiple of HANG_SECONDS, before the first step: it waits for the other workers, for the data and for the compiler.
FIRST_STEP_FACTOR = 3.0
# A training process writes its threads' stacks to standard error.
STACKS_SIGNAL = signal.SIGUSR2

# Read by MindSpore when it is imported: the least severity it logs (3: errors), and where a failed compile dumps to.
LOG_LEVEL_VARIABLE = "GLOG_v"
COMPILER_DUMP_VARIABLE = "MS_OM_PATH"

# Set to `true` by KFP's executor in a step's process.
KFP_RUNTIME_VARIABLE = "_KFP_RUNTIME"

# Mounted into every pod with a service account token.
SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def is_in_pod() -> bool:
    """Return whether this process runs in a pod, with or without a service account token."""
    return "KUBERNETES_SERVICE_HOST" in os.environ


def get_image(image: str = "") -> str:
    """Return `image`, else `$KFP_MINDSPORE_IMAGE`, else an empty string."""
    return image or os.environ.get(IMAGE_VARIABLE, "")


def get_namespace() -> str | None:
    """Return this pod's namespace; None outside a cluster."""
    try:
        return (SERVICE_ACCOUNT_DIR / "namespace").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def get_backend_name() -> str:
    """Return `$KFP_MINDSPORE_BACKEND`; by default `kubernetes` in a pod and `local` elsewhere."""
    default = KUBERNETES if (SERVICE_ACCOUNT_DIR / "namespace").is_file() else LOCAL
    return os.environ.get(BACKEND_VARIABLE) or default


def is_debug() -> bool:
    """Return whether `$KFP_MINDSPORE_DEBUG` enables stack traces."""
    return os.environ.get(DEBUG_VARIABLE, "").lower() in {"1", "true", "yes", "on"}


# MLflow's own: the server, and the run that points are logged to.
MLFLOW_URI_VARIABLE = "MLFLOW_TRACKING_URI"
MLFLOW_RUN_VARIABLE = "MLFLOW_RUN_ID"
# The run in which a new run is nested, as MLflow's own tag says.
MLFLOW_PARENT_VARIABLE = "KFP_MINDSPORE_MLFLOW_PARENT_RUN_ID"
