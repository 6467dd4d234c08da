"""What arithmetic alone can explain on the reference: set by the user, measured, or the floor of its dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from verifier.compare.tolerance import floor_of
from verifier.errors import ServerError
from verifier.judging.decoding_again import measure_decoding
from verifier.judging.measuring import Gauge
from verifier.plan import Plan
from verifier.records import Finding, Measurement, Tolerance
from verifier.servers.protocol import Server
from verifier.store.run_file import Store


@dataclass
class Tolerances:
    """The tolerance of one run. It is measured when first needed, and stored with the run."""

    plan: Plan
    store: Store
    reference: Server | None
    note: Callable[[Finding], None]
    wait: Callable[[str], None]
    _is_measured: bool = False

    def __post_init__(self) -> None:
        """Prepare measuring on the reference's last pass, which has log-probabilities."""
        self._gauge = Gauge(self.store, self.reference, self.plan.ref_runs - 1, self.note, self.wait)

    @property
    def known(self) -> Tolerance:
        """The tolerance as far as it is known by now, nats."""
        if self.plan.tolerance is not None:
            return Tolerance(self.plan.tolerance, "set by --tolerance", "high")
        if self.store.measurement is not None:
            return self.store.measurement.tolerance
        return floor_of(self.store.servers["ref"].fingerprint)

    @property
    def by_prefill(self) -> Tolerance:
        """The tolerance of all evidence but that by forced decoding, as far as it is known by now."""
        known = self.known
        if self.plan.tolerance is not None or self.store.measurement is None:
            return known
        return self.store.measurement.by_prefill or known

    async def measured(self) -> Tolerance:
        """The tolerance, after measuring once where that can be done."""
        if not self._is_measured:
            # Also where the tolerance is set by hand: measuring shows whether the reference's scores mean anything.
            self._is_measured = True
            await self.measure()
        return self.known

    async def measure(self) -> Measurement | None:
        """Measure on the reference and store the result, unless a measurement is stored or the reference cannot score.

        A reference that fails meanwhile is noted as a finding.
        """
        before, server = self.store.measurement, self.store.servers.get("ref")
        measurement = await self._gauge.measure()
        if before is not None or self.reference is None or server is None or not server.abilities.forced_decoding:
            return measurement
        try:
            finer = await measure_decoding(self.reference, server, self.store, self.plan.ref_runs - 1, measurement)
        except ServerError as error:
            self.note(Finding("tolerance", f"The tolerance could not be measured: {error.message}", "warning"))
            return measurement
        if finer is not None:
            self.store.append(finer)
        return finer or measurement

    async def refine(self) -> bool:
        """Measure at more positions; return whether the tolerance is known better now."""
        return await self._gauge.refine()
