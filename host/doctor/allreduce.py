"""A check of AllReduce: a small training job whose exact weights are known."""

import numpy as np

from p4sgd.host.aggregators.controller import Controller
from p4sgd.host.devices.device import Device
from p4sgd.host.devices.session import Session
from p4sgd.host.devices.worker_image import WorkerImage
from p4sgd.host.doctor.finding import Finding, Problem, Result, judge
from p4sgd.host.errors import P4sgdError
from p4sgd.host.losses import get_loss
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import LABEL, IntArray, WeightArray
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.hw.spec.packet import frame_bytes
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.hw.spec.run import FeatureFormat, RunSettings
from p4sgd.sim import golden

_FEATURES = FeatureFormat(stored=4, precision=4, signed=False)

_RUNS = 48
"""Enough runs not to blame the group by mistake: with two workers that lose 30 % of all frames each way, a single run
makes a worker look as if it got no multicast in 72 % of the cases, and all runs do so once in 7 million times."""


class Trial:
    """A training job, loaded into the workers. Each run is one AllReduce, with as many micro-batches as a packet takes.

    Data are random, with a unit of features for every engine. The learning rate is such that the weights change in
    every run and stay small. ``weights`` are those of each worker after the runs so far, int64, by the golden model.
    """

    def __init__(self, device: Device, session: Session) -> None:
        configs, micro_batches = [worker.config for worker in device.workers], max(1, session.most)
        rng, samples = np.random.default_rng(0), BANKS * micro_batches
        self._labels = rng.choice(LABEL.from_real([-1.0, 1.0]), samples)
        unit = min(config.lanes for config in configs)
        layouts = [ImageLayout(config, config.engines * unit, samples, _FEATURES.stored, unit) for config in configs]
        self._layouts = layouts
        self._features: list[IntArray] = [
            rng.integers(0, 1 << _FEATURES.precision, (samples, layout.features)) for layout in layouts
        ]
        features, loss = sum(layout.features for layout in layouts), get_loss("squared")
        self._table = loss.table(min(config.table_segments for config in configs))
        self._settings = RunSettings(
            features=_FEATURES,
            chunks=1,
            micro_batches=micro_batches,
            mini_batches=1,
            label_mode=loss.label_mode,
            rate_mantissa=1,
            rate_exponent=features.bit_length() + 3 + (micro_batches - 1).bit_length(),
            workers=len(configs),
            unit=unit,
        )
        self._session, self._source = session, ModelSource.ZERO
        self.weights: list[IntArray] = [np.zeros(layout.features, np.int64) for layout in layouts]
        labels = self._labels.astype(np.int32)
        data = zip(layouts, self._features, strict=True)
        session.upload(
            [WorkerImage(layout=each, labels=labels, port_lines=tuple(each.memories(q))) for each, q in data]
        )
        session.load_table(self._table)
        session.configure(self._settings)

    def run(self) -> tuple[dict[str, int], ...]:
        """Run all workers once; returns the counters of each. Raises as `Session.run`."""
        timeout_s = 50 * self._session.network.patience_s  # after which a worker gives up
        counters = self._session.run(self._source, timeout_s=timeout_s).counters
        self._source = ModelSource.KEEP
        self.weights = golden.train(self._features, self._labels, self.weights, self._table, self._settings).weights
        return counters

    def read_weights(self) -> list[WeightArray]:
        """Weights of each worker after the last run, to compare with ``weights``."""
        read = zip(self._layouts, self._session.read_weights(), strict=True)
        return [layout.unpad(layout.gather(engines)) for layout, engines in read]


def examine_allreduce(session: Session, trial: Trial, aggregator: Controller) -> list[Finding]:
    """Run the trial, which has not run yet, many times, and compare its weights with the golden model's.

    A worker that does not receive multicast frames still trains, slowly: it sends everything again, and the aggregator
    answers it alone. So a worker is known to receive multicast frames if in some run it made fewer resends than first
    sends, because some packet was answered without being resent.

    Returns findings ``allreduce`` and ``weights`` of every worker, or one ``allreduce`` of all together if a run fails.
    """
    sent, resent, changed = np.zeros((3, session.workers), np.int64)
    receives = np.zeros(session.workers, bool)
    before = aggregator.counters()
    for run in range(_RUNS):
        try:
            counters = trial.run()
        except P4sgdError as error:
            evidence, remedy = {"runs": run}, ""
            if session.most:  # probes have got through before, but these are short
                size = evidence["frame_bytes"] = frame_bytes(session.micro_batches)
                remedy = f"if a network on the way does not carry frames of {size:,} bytes, train with --merge 1"
            return judge(None, "allreduce", evidence, Problem(str(error), remedy))
        names = ("PACKETS_RESENT", "PACKETS_SENT", "DROPPED_CHECK")
        again, total, wrong = np.array([[each.get(name, 0) for name in names] for each in counters]).T
        receives |= again < total - again
        sent, resent, changed = sent + total, resent + again, changed + wrong
    after, names = aggregator.counters(), ("FULLS_TO_ONE", "CLEARS_TO_ONE", "DROPPED_CHECK")
    answered = {f"aggregator_{name.lower()}": after[name] - before[name] for name in names if name in after}
    findings, lost = list[Finding](), answered.get("aggregator_dropped_check", 0)
    # If not, a worker that sent again may only have waited for another.
    alone = not changed.any() and not lost and bool(receives.all())
    for worker in range(session.workers):
        own = {"packets": sent, "sent_again": resent, "dropped_check": changed}
        evidence = {name: int(counts[worker]) for name, counts in own.items()} | answered
        findings += judge(worker, "allreduce", evidence, _why_resent(evidence, bool(receives[worker]), alone))
    if lost:
        findings += judge(None, "allreduce", answered, _changed(lost, "the aggregator"))
    for worker, (weights, expected) in enumerate(zip(trial.read_weights(), trial.weights, strict=True)):
        wrong = int(np.count_nonzero(weights != expected))
        problem = Problem(
            f"{wrong} of its {weights.size} weights differ from those of the exact model",
            "check that no other device changes or sends packets of this job; then suspect the board and its memory",
        )
        findings += judge(worker, "weights", {"weights": weights.size, "wrong": wrong}, problem if wrong else None)
    return findings


def _changed(packets: int, receiver: str) -> Problem:
    return Problem(
        f"{packets} packets to {receiver} were changed on the way, behind right checksums",
        "look for a network card, a switch or a machine whose memory is faulty; weights stay right all the same",
        Result.WARNING,
    )


def _why_resent(evidence: dict[str, int], receives: bool, alone: bool) -> Problem | None:
    if changed := evidence["dropped_check"]:
        return _changed(changed, "it")
    if not receives:
        return Problem(
            "it receives no multicast frames of the aggregator, only those that are sent to it alone",
            "check that the job's ports at the aggregator include the worker's, and that switches on the way forward "
            "the group address to it",
        )
    if not evidence["sent_again"] or not alone:
        return None
    return Problem(
        f"it sent {evidence['sent_again']} of {evidence['packets']} packets again, which should not be necessary",
        "check the links for bit errors; if machines are busy, raise resend_us of the cluster file",
        Result.WARNING,
    )
