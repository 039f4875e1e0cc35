from .client import AsyncClient as AsyncClient
from .cluster import CancellationToken as CancellationToken
from .cluster import Cluster as Cluster
from .errors import ApiError as ApiError
from .errors import ConflictError as ConflictError
from .errors import ForbiddenError as ForbiddenError
from .errors import NotInstalledError as NotInstalledError
from .errors import UnreachableError as UnreachableError
