"""A worker that is lost in the middle of a training costs the epoch, and not a bit of the result."""

from functools import partial

import numpy as np
import pytest
from support.bench import default_seed
from support.events import events

from p4sgd.host.data import Dataset
from p4sgd.host.devices.device import NetworkSettings, client_of
from p4sgd.host.devices.rtl import RtlDevice
from p4sgd.host.devices.session import Session
from p4sgd.host.errors import P4sgdError
from p4sgd.host.training import CheckpointFile, TrainingOptions, load_checkpoint, train, workers
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig

OPTIONS = TrainingOptions(epochs=4, workers=2, precision=3)


@pytest.mark.rtl
@pytest.mark.slow
def test_training_goes_on_from_the_checkpoint(tmp_path, monkeypatch):
    # 31,000 cycles of resends instead of 40 million.
    network = NetworkSettings(resend_cycles=1000, resends=5)
    monkeypatch.setattr(workers, "Session", partial(Session, network=network))
    rng = np.random.default_rng(default_seed())
    x = rng.normal(size=(96, 40))
    data = Dataset(x, np.where(x @ rng.normal(size=40) > 0, 1.0, 0.0), "made")
    path = tmp_path / "checkpoint"

    def run(**more):
        device = RtlDevice(WorkerConfig.tiny(), 2, seed=default_seed())
        try:
            return train(data, OPTIONS, device, **{name: each(device) for name, each in more.items()})
        finally:
            device.close()

    def lose_worker_1(device):
        worker = device.workers[1]

        def lose(record):
            if record.epoch == 2:  # nobody hears it from now on
                client = client_of(worker)
                client.write_pair(registers.PEER_MAC, 0x0250_0000_0BAD)

        return events(epoch=lose)

    whole = run()
    with pytest.raises(P4sgdError, match=r"^worker 1 no longer answers: worker 0 waited for it in vain \(slot "):
        run(events=lose_worker_1, checkpoint=lambda _: CheckpointFile(path))
    saved = load_checkpoint(path)
    assert saved.states[0].epoch == 2
    resumed = run(resume=lambda _: saved)
    assert resumed.model.weights.tolist() == whole.model.weights.tolist()
    assert resumed.model.intercept == whole.model.intercept
    assert [each.metrics for each in resumed.history] == [each.metrics for each in whole.history]
