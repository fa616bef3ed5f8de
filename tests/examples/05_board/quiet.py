"""An Alveo U50 in a chassis that cools less: Vivado's report of power is judged by 45 W, not 63."""

import dataclasses

from p4sgd.build.generate.boards import BOARDS as OURS

BOARDS = {"u50_quiet": dataclasses.replace(OURS["u50"], name="Alveo U50 in a quiet chassis", watts=45)}
