"""A connect-4 player: self-play and training in one MSJob, an arena as the gate, a served move."""

from kfp import dsl


@dsl.pipeline(
    name="connect4",
    description="Train a policy and value network of connect-4 by self-play of several workers with tree search; "
    "let the exported player play against a random and a one-ply player, and deploy it if it wins often enough.",
)
def connect4(
    epochs: int = 24,
    simulations: int = 32,
    workers: int = 2,
    games: int = 100,
    threshold: float = 0.9,
    seed: int = 42,
    service_name: str = "connect4",
    namespace: str = "",
    service_account: str = "",
):
    """Train a connect-4 player by self-play, and serve it if it beats two simple players.

    Args:
        epochs: Self-play and training rounds.
        simulations: Tree search simulations for each self-play move.
        workers: Worker count; each worker plays its share of the games.
        games: Arena games against each opponent, half as the first player.
        threshold: Minimum fraction of games that the served move must win against each opponent, 0 to 1.
        seed: Seed for the initial parameters and self-play.
        service_name: Name for the service and for the model in its URLs.
        namespace: Namespace for the job and the service; default the steps'.
        service_account: Service account for the service's pods, with the model store's credentials.
    """
    from kfp_mindspore.components import evaluate_function, export_mindir, train_msjob
    from kfp_mindspore.pipelines.shared.deployment import deploy
    from kfp_mindspore.pipelines.shared.training import get_command

    training = train_msjob(
        command=get_command("connect4"),
        hyperparameters={"epochs": epochs, "simulations": simulations, "seed": seed},
        workers=workers,
        namespace=namespace,
    )
    bundle = export_mindir(model=training.outputs["model"]).outputs["bundle"]
    arena = evaluate_function(
        bundle=bundle,
        function="kfp_mindspore.workloads.connect4.arena:play_arena",
        arguments={"games": games, "simulations": simulations},
        threshold=threshold,
    )
    deploy(bundle, arena.outputs["passed"], service_name, namespace, service_account, smoke_samples=32)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(connect4, package_path=__file__.replace(".py", ".yaml"))
