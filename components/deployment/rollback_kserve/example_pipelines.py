"""Example pipeline for rollback_kserve."""

from kfp import dsl


@dsl.pipeline(name="rollback-kserve-example")
def example_pipeline(service_name: str = "digits", namespace: str = "default"):
    """Deploy the previous version's model again.

    Args:
        service_name: Service name.
        namespace: Service namespace.
    """
    from kfp_mindspore.components import rollback_kserve

    rollback_kserve(service_name=service_name, namespace=namespace).set_caching_options(False)
