from .deployment.batch_predict.pipeline import batch_predict as batch_predict
from .deployment.two_models.pipeline import two_models as two_models
from .training.active_learning.pipeline import active_learning as active_learning
from .training.digits_from_sources.pipeline import digits_from_sources as digits_from_sources
from .training.digits_lifecycle.pipeline import digits_lifecycle as digits_lifecycle
from .training.retrain_and_promote.pipeline import retrain_and_promote as retrain_and_promote
from .training.scheduled_retraining.pipeline import scheduled_retraining as scheduled_retraining
from .training.wide_deep.pipeline import wide_deep as wide_deep
