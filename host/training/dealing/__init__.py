"""Which columns each worker gets."""

from collections.abc import Callable, Sequence

from p4sgd.host.data import Scaling
from p4sgd.host.image.contents import Values
from p4sgd.host.image.image import Shard
from p4sgd.host.precondition import Whitening
from p4sgd.host.training.dealing.split import Dealt
from p4sgd.host.training.options import TrainingOptions


def deal_columns(
    shards: Sequence[Shard],
    scaling: Scaling | Whitening,
    options: TrainingOptions,
    *,
    samples: int,
    values: Callable[[int], Values],
    network: bool = False,
    may_read_zeros: bool = False,
) -> Dealt:
    """Deal sparse columns by heat, for boards that read all lines or that pass over zeros, whichever is faster.

    Parameters
    ----------
    shards
        The workers, with units by their shares.
    values
        Gives what is not 0 in so many of the first samples, which are in random order: whole micro-batches, or all.
    network
        Whether sparse workers are processes that exchange packets, which takes them time.
    may_read_zeros
        Whether workers that cannot skip zeros read them where ``skip_zeros`` is ``always``, instead of being refused.

    Raises `UserError` if the workers cannot hold the columns that way, or if zeros are to be skipped and cannot be.
    """
    heat = scaling.heat if isinstance(scaling, Scaling) else None
    if heat is None and options.skip_zeros != "always":
        return Dealt(list(shards))
    from p4sgd.host.training.dealing.columns import deal_by_heat, skipping_problem

    problem = skipping_problem(shards, scaling, options)
    if problem is not None and options.skip_zeros == "always" and not may_read_zeros:
        raise problem
    return deal_by_heat(shards, heat, options, samples, values if problem is None else None, network=network)
