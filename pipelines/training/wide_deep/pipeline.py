"""Wide & Deep: train on MovieLens ratings, export, evaluate on later ratings, deploy."""


def _build():
    # The import guard of kubeflow/pipelines-components allows the standard library and kfp at module level.
    from kfp_mindspore.pipelines.shared.training import build_pipeline

    return build_pipeline("wide_deep")


wide_deep = _build()

if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(wide_deep, package_path=__file__.replace(".py", ".yaml"))
