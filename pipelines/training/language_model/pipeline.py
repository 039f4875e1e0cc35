"""Language model: train on a text's characters, export, evaluate by perplexity, deploy."""


def _build():
    # The import guard of kubeflow/pipelines-components allows the standard library and kfp at module level.
    from kfp_mindspore.pipelines.shared.training import build_pipeline

    return build_pipeline("language_model")


language_model = _build()

if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(language_model, package_path=__file__.replace(".py", ".yaml"))
