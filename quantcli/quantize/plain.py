"""The plain quantizer: the search for the best codes, weighted where statistics are known."""

from __future__ import annotations

import time

from quantcli.kernels.quantize import encode
from quantcli.quantize import MatrixJob, MatrixResult, Needs
from quantcli.quantize.loss import energy, error_energy


class Plain:
    """Rounds each row by itself; without statistics to the bytes that llama-quantize writes."""

    name = "plain"
    needs: Needs = "nothing"

    def __repr__(self) -> str:
        return self.name

    def quantize(self, job: MatrixJob) -> MatrixResult:
        """Return the matrix in the job's format, and the weighted error of that."""
        began = time.perf_counter()
        importance = job.statistics.importance if job.statistics else None
        data = encode(job.weight, job.format, importance)
        whole = energy(job.weight, importance)
        lost = error_energy(job.weight, data, job.format, importance)
        error = lost / whole if whole else 0.0
        return MatrixResult(data, error, seconds=time.perf_counter() - began)


QUANTIZER = Plain()
