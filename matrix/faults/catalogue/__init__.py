"""The catalogue of faults, by class of defect."""

from typing import Final

from specmatrix.matrix.faults.catalogue.acceptance import ACCEPTANCE_FAULTS
from specmatrix.matrix.faults.catalogue.accuracy import ACCURACY_FAULTS
from specmatrix.matrix.faults.catalogue.adaptive import ADAPTIVE_FAULTS
from specmatrix.matrix.faults.catalogue.alignment import ALIGNMENT_FAULTS
from specmatrix.matrix.faults.catalogue.alternatives import ALTERNATIVE_FAULTS
from specmatrix.matrix.faults.catalogue.blocks import BLOCK_FAULTS
from specmatrix.matrix.faults.catalogue.configuration import CONFIGURATION_FAULTS
from specmatrix.matrix.faults.catalogue.contention import CONTENTION_FAULTS
from specmatrix.matrix.faults.catalogue.endings import ENDING_FAULTS
from specmatrix.matrix.faults.catalogue.experts import EXPERT_FAULTS
from specmatrix.matrix.faults.catalogue.graphs import GRAPH_FAULTS
from specmatrix.matrix.faults.catalogue.growth import GROWTH_FAULTS
from specmatrix.matrix.faults.catalogue.heads import HEAD_FAULTS
from specmatrix.matrix.faults.catalogue.indexing import INDEXING_FAULTS
from specmatrix.matrix.faults.catalogue.kernels import KERNEL_FAULTS
from specmatrix.matrix.faults.catalogue.layers import LAYER_FAULTS
from specmatrix.matrix.faults.catalogue.memory import MEMORY_FAULTS
from specmatrix.matrix.faults.catalogue.ngrams import NGRAM_FAULTS
from specmatrix.matrix.faults.catalogue.numerics import NUMERIC_FAULTS
from specmatrix.matrix.faults.catalogue.ranks import RANK_FAULTS
from specmatrix.matrix.faults.catalogue.renewals import RENEWAL_FAULTS
from specmatrix.matrix.faults.catalogue.requirements import REQUIREMENT_FAULTS
from specmatrix.matrix.faults.catalogue.resources import RESOURCE_FAULTS
from specmatrix.matrix.faults.catalogue.returns import RETURN_FAULTS
from specmatrix.matrix.faults.catalogue.sampling import SAMPLING_FAULTS
from specmatrix.matrix.faults.catalogue.servers import SERVER_FAULTS
from specmatrix.matrix.faults.catalogue.sessions import SESSION_FAULTS
from specmatrix.matrix.faults.catalogue.sizes import SIZE_FAULTS
from specmatrix.matrix.faults.catalogue.spares import SPARE_FAULTS
from specmatrix.matrix.faults.catalogue.timing import TIMING_FAULTS
from specmatrix.matrix.faults.catalogue.windows import WINDOW_FAULTS
from specmatrix.matrix.faults.catalogue.work import WORK_FAULTS
from specmatrix.matrix.faults.fault import Fault

CATALOGUE: Final[tuple[Fault, ...]] = (
    *INDEXING_FAULTS,
    *TIMING_FAULTS,
    *SESSION_FAULTS,
    *CONTENTION_FAULTS,
    *RETURN_FAULTS,
    *RENEWAL_FAULTS,
    *ADAPTIVE_FAULTS,
    *MEMORY_FAULTS,
    *ALIGNMENT_FAULTS,
    *ACCEPTANCE_FAULTS,
    *HEAD_FAULTS,
    *BLOCK_FAULTS,
    *NGRAM_FAULTS,
    *SIZE_FAULTS,
    *LAYER_FAULTS,
    *EXPERT_FAULTS,
    *WINDOW_FAULTS,
    *SAMPLING_FAULTS,
    *ACCURACY_FAULTS,
    *ENDING_FAULTS,
    *REQUIREMENT_FAULTS,
    *ALTERNATIVE_FAULTS,
    *CONFIGURATION_FAULTS,
    *RANK_FAULTS,
    *GRAPH_FAULTS,
    *NUMERIC_FAULTS,
    *RESOURCE_FAULTS,
    *KERNEL_FAULTS,
    *SPARE_FAULTS,
    *WORK_FAULTS,
    *GROWTH_FAULTS,
    *SERVER_FAULTS,
)
