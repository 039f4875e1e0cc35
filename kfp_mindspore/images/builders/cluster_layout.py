"""Where things lie in a build's pod: what the client's manifests and the code in the pod agree on."""

from __future__ import annotations

SETTINGS_FOLDER = "/run/kfp-mindspore/settings"
CONTEXT_FOLDER = "/run/kfp-mindspore/context"
PUSH_FOLDER = "/run/kfp-mindspore/push"
PULL_FOLDER = "/run/kfp-mindspore/pull"
SECRETS_FOLDER = "/run/kfp-mindspore/secrets"
WORK_FOLDER = "/work"
TERMINATION_FILE = "/dev/termination-log"

PLAN_FILE = "plan.json"
REGISTRY_FILE = "registry.json"
REGISTRIES_CONF_FILE = "registries.conf"
BUILDKITD_FILE = "buildkitd.toml"
CA_FILE = "ca.crt"
# The name of a Secret's login under type kubernetes.io/dockerconfigjson, and as which it is mounted.
SECRET_KEY = ".dockerconfigjson"
LOGIN_FILE = "config.json"

CONTAINER = "build"
FETCH_CONTAINER = "fetch"
