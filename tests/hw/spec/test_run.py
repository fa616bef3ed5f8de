"""What a run may be told."""

import pytest

from p4sgd.hw.spec.run import COUNT_BITS, FeatureFormat, LabelMode, RunSettings


@pytest.mark.parametrize("chunks", [1 << 8, 257, 1 << 16])
def test_no_more_chunks_than_the_hardware_counts(chunks):
    def settings(mini_batches):
        return RunSettings(FeatureFormat(8, 8, False), chunks, 256, mini_batches, LabelMode(), 1, 10)

    most = ((1 << COUNT_BITS) - 1) // (chunks * 256)
    assert settings(most).mini_batches == most
    with pytest.raises(ValueError, match=r"the hardware counts to 2\^40 - 1: use fewer mini-batches"):
        settings(most + 1)
