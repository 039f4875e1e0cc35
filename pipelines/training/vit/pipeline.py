"""A Vision Transformer: train on images, export, evaluate, deploy if accurate enough."""


def _build():
    # The import guard of kubeflow/pipelines-components allows the standard library and kfp at module level.
    from kfp_mindspore.pipelines.shared.training import build_pipeline

    return build_pipeline("vit")


vit = _build()

if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(vit, package_path=__file__.replace(".py", ".yaml"))
