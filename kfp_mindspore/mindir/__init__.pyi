from .evaluate import evaluate_bundle as evaluate_bundle
from .export.checkpoint import export_mindir as export_mindir
from .graph.runner import GraphRunner as GraphRunner
from .graph.runner import ModelRunner as ModelRunner
from .parameters.widths import load_network as load_network
from .verify import verify_bundle as verify_bundle
