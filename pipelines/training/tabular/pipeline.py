"""Regression or classification on table rows: load, train, export, evaluate, deploy if good enough, smoke test."""


def _build():
    # The import guard of kubeflow/pipelines-components allows the standard library and kfp at module level.
    from kfp_mindspore.pipelines.shared.training import build_pipeline

    return build_pipeline("tabular")


tabular = _build()

if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(tabular, package_path=__file__.replace(".py", ".yaml"))
