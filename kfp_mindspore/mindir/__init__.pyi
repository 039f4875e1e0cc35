from .evaluate import evaluate_bundle as evaluate_bundle
from .export import export_mindir as export_mindir
from .metadata import inspect_mindir as inspect_mindir
from .runner import GraphRunner as GraphRunner
from .runner import ModelRunner as ModelRunner
from .verify import verify_bundle as verify_bundle
from .widths import load_network as load_network
