from .data_processing.load_dataset.component import load_dataset as load_dataset
from .deployment.deploy_kserve.component import deploy_kserve as deploy_kserve
from .deployment.smoke_test.component import smoke_test as smoke_test
from .evaluation.evaluate_mindir.component import evaluate_mindir as evaluate_mindir
from .training.build_image.component import build_image as build_image
from .training.export_mindir.component import export_mindir as export_mindir
from .training.train_msjob.component import train_msjob as train_msjob
