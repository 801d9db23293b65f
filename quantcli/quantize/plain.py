"""The plain quantizer: the search for the best codes, weighted where statistics are known."""

from __future__ import annotations

import time

from quantcli.kernels.quantize import encode
from quantcli.quantize import MatrixJob, MatrixResult, Needs
from quantcli.quantize.loss import energy, error_energy

_EVERY = 16  # rows, of which the error of one is measured
_FEW_ROWS = 256  # below, of all


class Plain:
    """Rounds each row by itself; without statistics to the bytes that llama-quantize writes."""

    name = "plain"
    needs: Needs = "nothing"

    def __repr__(self) -> str:
        return self.name

    def quantize(self, job: MatrixJob) -> MatrixResult:
        """Return the matrix in the job's format, and the weighted error of that.

        Without statistics the error is that of every sixteenth row: measuring it takes longer than
        rounding to the simple formats.
        """
        began = time.perf_counter()
        importance = job.statistics.importance if job.statistics else None
        data = encode(job.weight, job.format, importance)
        weight, blocks = job.weight, data.reshape(len(job.weight), -1)
        if job.statistics is None and len(weight) >= _FEW_ROWS:
            weight, blocks = weight[::_EVERY], blocks[::_EVERY]
        whole = energy(weight, importance)
        lost = error_energy(weight, blocks.reshape(-1), job.format, importance)
        error = lost / whole if whole else 0.0
        return MatrixResult(data, error, seconds=time.perf_counter() - began)


QUANTIZER = Plain()
